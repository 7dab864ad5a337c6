"""The state of each patch on each release: ranges, what is missing, what conflicts, and what failed where it once did fit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from patchwork import Patch, optional, required
from patchwork.engine.errors import (
    AnchorMissing,
    MissingName,
    PatchConflict,
    ReleaseUnavailable,
    SourceUnavailable,
    TargetMissing,
    UnknownRelease,
)
from patchwork.releases.against import packages_of, resolve
from patchwork.releases.checking import Finding, check, check_all
from patchwork.releases.trees import Tree
from patchwork.releases.wheels import fetch

if TYPE_CHECKING:
    from conftest import Shelf

Make = Callable[..., Patch]
OLD = "def a(): ...\ndef b(): ...\ndef f():\n    return a()\n"
NEW = OLD.replace("return a()", "return b()")
OTHER = OLD.replace("return a()", "return c()")


def tree(shelf: Shelf, version: str, core: str | bytes = OLD, **others: str) -> Tree:
    return Tree("lib", version, shelf.lib(version, core, **others))


def states(findings: list[Finding]) -> list[str]:
    return [finding.outcome.state for finding in findings]


def error_of(finding: Finding) -> Exception:
    assert finding.outcome.state == "failed"
    assert finding.outcome.error is not None
    assert finding.outcome.detail == finding.outcome.error.what
    return finding.outcome.error


def test_a_patch_is_applied_native_or_failed(shelf: Shelf, patch: Make) -> None:
    trees = [tree(shelf, "1.0"), tree(shelf, "1.1", NEW), tree(shelf, "1.2", OTHER)]
    found = check_all([patch()], trees)
    assert states(found) == ["applied", "native", "failed"]
    assert found[0].outcome.edits == ("replace at line 4",)
    assert found[0].path == f"{trees[0].path.as_posix()}/lib/core.py"
    assert [finding.release for finding in found] == ["lib 1.0", "lib 1.1", "lib 1.2"]
    assert isinstance(error_of(found[2]), AnchorMissing)


def test_a_release_outside_the_range_is_absent_whatever_its_code(shelf: Shelf, patch: Make) -> None:
    ranged = patch(lib=">=1.1,<2")
    found = check_all([ranged], [tree(shelf, "1.0", OTHER), tree(shelf, "1.1"), tree(shelf, "2.0", "no python")])
    assert states(found) == ["absent", "applied", "absent"]
    assert found[0].outcome.detail == "for lib >=1.1,<2"


def test_a_development_version_is_compared_as_apply_compares_it(shelf: Shelf, patch: Make) -> None:
    """PEP 440 keeps a pre-release of 5.25 out of `<5.25`, and it comes before 5.25."""
    main = tree(shelf, "5.25.0.dev0")
    ranges = (">=4.57", ">=5.24,<5.26", "<5.25", ">=5.25")
    assert [state for text in ranges for state in states(check([patch(lib=text)], main))] == [*["applied"] * 2, *["absent"] * 2]


def test_only_the_range_of_this_package_decides(shelf: Shelf, patch: Make) -> None:
    both = patch(lib=">=1", torch=">=99")
    [finding] = check([both], tree(shelf, "1.0"))
    assert (finding.outcome.state, finding.outcome.detail) == ("applied", "its range of torch is not looked at")
    torch = Tree("torch", "2.0", shelf.wheel("torch", "2.0", {"torch/__init__.py": ""}))
    assert check([both], torch) == []


def test_a_package_without_the_module_that_it_is_named_for_is_absent(shelf: Shelf, patch: Make) -> None:
    empty = Tree("lib", "1.0", shelf.wheel("lib", "1.0", {"bil/__init__.py": ""}))
    [finding] = check([patch(lib=">=1")], empty)
    assert (finding.outcome.state, finding.outcome.detail) == ("absent", "there is no module lib in it")


def test_a_patch_without_ranges_concerns_whoever_provides_its_module(shelf: Shelf, patch: Make) -> None:
    fork = Tree("lib-fork", "1.0", shelf.wheel("lib-fork", "1.0", {"lib/core.py": OLD}))
    assert states(check([patch(), patch(module="other.core")], fork)) == ["applied"]
    assert states(check([patch(lib=">=9")], fork)) == ["applied"]


def test_names_compare_normalised(shelf: Shelf, patch: Make) -> None:
    odd = Tree("My_Lib", "1.0", shelf.wheel("my-lib", "1.0", {"lib/core.py": OLD}))
    assert states(check([patch(my_lib=">=1"), patch(my_lib=">=2")], odd)) == ["applied", "absent"]


@pytest.mark.parametrize("version", [None, "unknown"])
def test_an_unknown_version_is_newer_than_every_release(shelf: Shelf, patch: Make, version: str | None) -> None:
    unknown = Tree("lib", version, shelf.lib("1.0", OLD))
    found = check([patch(lib=">=1"), patch(lib="<99")], unknown)
    assert states(found) == ["applied", "absent"]
    assert found[0].outcome.detail == "version unknown: taken as newer than every release"
    assert found[1].outcome.detail == "for lib <99; version unknown: taken as newer than every release"


def test_a_module_missing_in_a_release_of_the_range_is_a_failure(shelf: Shelf, patch: Make) -> None:
    gone = patch("lib.gone", module="lib.models.core", lib=">=1")
    error = error_of(*check([gone], tree(shelf, "1.0")))
    assert isinstance(error, TargetMissing)
    assert (error.patch, error.target, error.nearest) == ("lib.gone", "lib.models.core:f", "lib.core")


@pytest.mark.parametrize(
    ("core", "kind"),
    [
        ("def f(:", SourceUnavailable),
        (b"\xff", SourceUnavailable),
        ("x = 1", TargetMissing),
        ("def f(): return a()", MissingName),
    ],
)
def test_what_cannot_be_rewritten_fails_with_its_file(shelf: Shelf, patch: Make, core: str, kind: type[Exception]) -> None:
    [finding] = check([patch()], tree(shelf, "1.0", core))
    error = error_of(finding)
    assert isinstance(error, kind)
    assert f"{finding.path}" in str(error)


def test_patches_that_conflict_on_a_release_fail_there(shelf: Shelf, patch: Make) -> None:
    pair = [patch("one.x"), patch("two.x", old="return a()", new="return b()"), patch("three.x", old="return $X", new="return b")]
    assert states(check(pair[:1], tree(shelf, "1.0"))) == ["applied"]
    found = check(pair, tree(shelf, "1.0"))
    assert sorted(states(found)) == ["applied", "failed", "failed"]
    assert all(isinstance(error_of(finding), PatchConflict) for finding in found if finding.outcome.state == "failed")


def test_a_failure_of_one_patch_leaves_the_others_alone(shelf: Shelf, patch: Make) -> None:
    found = check([patch("one.x"), patch("two.x", old="c()"), patch("three.x", old="def g(): ...")], tree(shelf, "1.0"))
    assert states(found) == ["applied", "failed", "failed"]


def test_a_missed_optional_anchor_is_told(shelf: Shelf) -> None:
    edits = [required("a()").replace("b()"), optional("log($X)").remove()]
    [finding] = check([Patch("lib.p", "lib.core:f", edits)], tree(shelf, "1.0"))
    assert finding.outcome.detail == "optional anchor not found: log($X)"


def test_equal_modules_are_worked_on_once_and_told_apart(shelf: Shelf, patch: Make) -> None:
    trees = [tree(shelf, version, OTHER) for version in ("1.0", "1.1", "1.2")]
    told: list[tuple[int, int]] = []
    found = check_all([patch()], trees, progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 1), (1, 1)]
    assert [error_of(finding).file for finding in found] == [finding.path for finding in found]  # type: ignore[attr-defined]
    assert len({finding.path for finding in found}) == 3


def test_patches_of_other_ranges_are_not_taken_for_the_same_work(shelf: Shelf, patch: Make) -> None:
    pair = [patch("one.x", lib="<1.1"), patch("two.x", old="return a()", new="return b()")]
    found = check_all(pair, [tree(shelf, "1.0"), tree(shelf, "1.1")])
    assert [finding.outcome.patch for finding in found] == ["one.x", "two.x"] * 2
    assert states(found)[2:] == ["absent", "applied"]
    assert sorted(states(found)[:2]) == ["applied", "failed"]


def test_several_processes_find_what_one_finds(shelf: Shelf, patch: Make) -> None:
    trees = [tree(shelf, f"1.{number}", (OLD, NEW, OTHER)[number % 3] + f"# {number}\n") for number in range(8)]
    one, two = (check_all([patch()], trees, workers=workers, keep_rewrites=True) for workers in (1, 2))
    assert [str(finding.outcome.error) for finding in one] == [str(finding.outcome.error) for finding in two]
    assert [(f.patch, f.version, f.path, f.outcome.state, f.rewrite) for f in one] == [
        (f.patch, f.version, f.path, f.outcome.state, f.rewrite) for f in two
    ]
    assert states(two)[:3] == ["applied", "native", "failed"]


def test_rewrites_are_kept_where_asked_for_with_every_byte(shelf: Shelf, patch: Make) -> None:
    core = OLD.replace("\n", "\r\n").encode()
    [finding] = check([patch()], tree(shelf, "1.0", core), keep_rewrites=True)
    assert finding.rewrite is not None
    assert finding.rewrite.source == core.replace(b"return a()", b"return b()")
    assert finding.diff.splitlines()[:2] == ["--- a/lib/core.py\tlib 1.0", "+++ b/lib/core.py\tlib 1.0, lib.patch"]
    assert check([patch()], tree(shelf, "1.0", core))[0].rewrite is None


def test_a_diff_keeps_lines_that_hold_a_form_feed_or_a_line_separator(shelf: Shelf, patch: Make) -> None:
    core = OLD.replace("def b(): ...", "\fdef b(): '\u2028'")
    [finding] = check([patch()], tree(shelf, "1.0", core), keep_rewrites=True)
    assert " \fdef b(): '\u2028'" in finding.diff.split("\n")


def test_the_diff_of_a_package_is_that_of_its_init(shelf: Shelf) -> None:
    package = Tree("lib", "1.0", shelf.wheel("lib", "1.0", {"lib/__init__.py": OLD}))
    [finding] = check([Patch("lib.p", "lib:f", [required("a()").replace("b()")])], package, keep_rewrites=True)
    assert finding.diff.startswith("--- a/lib/__init__.py\t")


def test_trees_that_no_patch_is_for_are_wrong_use(shelf: Shelf, patch: Make) -> None:
    other = Tree("other", "1.0", shelf.wheel("other", "1.0", {"other.py": ""}))
    with pytest.raises(UnknownRelease) as caught:
        check_all([patch(lib=">=1")], [other])
    assert (caught.value.what, caught.value.hint) == ("no selected patch is for other 1.0", "the patches selected are for lib")
    assert states(check_all([patch(lib=">=1")], [other, tree(shelf, "1.0")])) == ["applied"]


def test_a_damaged_tree_is_no_patch_failure(shelf: Shelf, patch: Make) -> None:
    damaged = tree(shelf, "1.0")
    damaged.path.write_bytes(damaged.path.read_bytes().replace(b"return a()", b"return x()"))
    with pytest.raises(ReleaseUnavailable, match="CRC"):
        check_all([patch()], [damaged])


def last_matches(findings: list[Finding]) -> list[str]:
    errors = [finding.outcome.error for finding in findings]
    return [error.last_match for error in errors if isinstance(error, AnchorMissing)]


def test_the_last_match_is_the_newest_older_release_of_the_run(shelf: Shelf, patch: Make) -> None:
    runs = [("1.3", OTHER), ("1.0", OLD), ("1.10", OLD), ("1.2", OLD), ("1.4", NEW), ("1.5", OTHER)]
    found = check_all([patch()], [tree(shelf, version, core + f"# {version}") for version, core in runs])
    assert last_matches(found) == ["lib 1.2", "lib 1.2"]


def test_the_last_match_may_be_a_wheel_of_the_cache(shelf: Shelf, patch: Make) -> None:
    for version, core in (("1.0", OLD), ("1.1", OLD), ("1.2", OTHER), ("1.9", OLD)):
        shelf.lib(version, core)
        fetch("lib", version)
    assert last_matches(check_all([patch()], [tree(shelf, "1.5", OTHER)])) == ["lib 1.1"]
    assert last_matches(check_all([patch(lib="!=1.1")], [tree(shelf, "1.5", OTHER)])) == ["lib 1.0"]
    assert last_matches(check_all([patch(lib=">1.1")], [tree(shelf, "1.5", OTHER)])) == [""]
    folder = Tree("lib", None, shelf.folder.parent / "site")
    shutil.unpack_archive(shelf.lib("1.6", OTHER), folder.path, "zip")
    assert last_matches(check_all([patch()], [folder])) == ["lib 1.9"]


def test_a_damaged_wheel_of_the_cache_is_no_last_match(shelf: Shelf, patch: Make) -> None:
    shelf.lib("1.1", OLD)
    wheel = fetch("lib", "1.1")
    wheel.write_bytes(wheel.read_bytes().replace(b"return a()", b"return x()"))
    assert last_matches(check_all([patch()], [tree(shelf, "1.5", OTHER)])) == [""]


def test_what_is_installed_here_is_checked_as_a_folder() -> None:
    from importlib.util import find_spec

    from patchwork.api import previews
    from patchwork.selection import all_patches

    spec = find_spec("transformers")
    if spec is None or spec.origin is None or find_spec("trl") is None:
        pytest.skip("transformers or trl is not installed")
    patches = [patch for patch in all_patches() if find_spec(patch.module.partition(".")[0]) is not None]
    found = check_all(patches, resolve(str(Path(spec.origin).parents[1]), packages_of(patches)).trees, workers=1)
    expected = {item.outcome.patch: item.outcome for item in previews(patches)}
    assert {finding.outcome.patch for finding in found} == set(expected)
    words = {"pending": "applied", "skipped": "absent"}
    assert {f.outcome.patch: f.outcome.state for f in found} == {n: words.get(o.state, o.state) for n, o in expected.items()}
    assert {f.outcome.patch: f.outcome.edits for f in found} == {name: o.edits for name, o in expected.items()}
    assert "transformers" not in sys.modules or "torch" in sys.modules


def test_a_script_that_no_worker_can_be_started_from_does_the_work_itself(shelf: Shelf, patch: Make) -> None:
    """A program read from a pipe has no file that a new process could import as its main module."""
    for number in range(8):
        shelf.lib(f"1.{number}", OLD + f"# {number}\n")
    program = (
        "from pathlib import Path\nfrom patchwork import Patch, required\n"
        "from patchwork.releases.checking import check_all\nfrom patchwork.releases.trees import Tree\n"
        "patch = Patch('lib.p', 'lib.core:f', [required('a()').replace('b()')])\n"
        f"wheels = sorted(Path({str(shelf.folder)!r}).iterdir())\n"
        "print([finding.outcome.state for finding in check_all([patch], [Tree('lib', '1', wheel) for wheel in wheels])])\n"
    )
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(["applied"] * 8), done.stderr
