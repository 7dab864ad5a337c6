"""Which patches are meant: names, globs, objects, switches, versions, installed packs."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import patchwork
from patchwork import AnchorMissing, CaseFails, InvalidPatch, Patch, PatchConflict, PatchError, UnknownPatch, required
from patchwork.api import previews
from patchwork.selection import all_patches, named, tell_command

if TYPE_CHECKING:
    from conftest import Library

ADD_ONE = required("return $X").replace("return $X + 1")
CORE = "".join(f"def {name}(x):\n    return x\n\n" for name in "fgh")


@pytest.fixture
def known(lib: Library, monkeypatch: pytest.MonkeyPatch) -> tuple[Patch, ...]:
    """Three built-in patches, instead of the real ones, for an installed `lib` 2.1."""
    lib.write(CORE)
    distribution(lib, "lib", "2.1")
    patches = (
        lib.patch("f", ADD_ONE, name="lib.core.first"),
        lib.patch("g", ADD_ONE, name="lib.core.second"),
        lib.patch("h", ADD_ONE, name="lib.more.third"),
    )
    monkeypatch.setattr("patchwork.patches.PATCHES", patches)
    monkeypatch.setattr("patchwork.patches.TESTED", {"lib": "2.1"})
    return patches


def distribution(lib: Library, name: str, version: str, entry_points: str = "") -> None:
    folder = lib.root / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "entry_points.txt").write_text(entry_points)
    importlib.invalidate_caches()


def names(report: patchwork.Report) -> dict[str, str]:
    return {outcome.patch: outcome.state for outcome in report}


def test_without_a_selection_all_patches_are_applied(lib: Library, known: tuple[Patch, ...]) -> None:
    assert names(patchwork.apply()) == dict.fromkeys([patch.name for patch in known], "pending")
    core = lib.load()
    assert (core.f(1), core.g(1), core.h(1)) == (2, 2, 2)


def test_names_and_globs_are_applied_in_the_order_of_the_catalogue(known: tuple[Patch, ...]) -> None:
    assert list(names(patchwork.apply("lib.more.third", "lib.core.first"))) == ["lib.core.first", "lib.more.third"]
    patchwork.revert()
    assert list(names(patchwork.apply("lib.core.*"))) == ["lib.core.first", "lib.core.second"]


def test_a_name_and_a_glob_that_cover_each_other_apply_once(known: tuple[Patch, ...]) -> None:
    assert list(names(patchwork.apply("lib.*", "lib.core.first"))) == [patch.name for patch in known]


def test_patch_objects_are_applied_alone_and_beside_names(lib: Library, known: tuple[Patch, ...]) -> None:
    own = lib.patch("h", ADD_ONE, name="own.h")
    assert list(names(patchwork.apply(own))) == ["own.h"]
    patchwork.revert()
    assert list(names(patchwork.apply(own, "lib.core.first"))) == ["lib.core.first", "own.h"]


@pytest.mark.parametrize("name", ["lib.core.frist", "lib.coer.first"])
def test_an_unknown_name_names_the_closest(known: tuple[Patch, ...], name: str) -> None:
    with pytest.raises(UnknownPatch, match=f"no patch is called '{name}'") as caught:
        patchwork.apply("lib.more.third", name)
    assert "nearest: lib.core.first" in str(caught.value)
    assert len(patchwork.status()) == 0


@pytest.mark.parametrize("wrong", ["", "nothing.*", 5, None])
def test_what_is_no_patch_is_refused(known: tuple[Patch, ...], wrong: object) -> None:
    for call in (patchwork.apply, patchwork.revert):
        with pytest.raises(UnknownPatch, match="no patch"):
            call(wrong)  # type: ignore[arg-type]


def test_exclude_takes_names_and_globs(lib: Library, known: tuple[Patch, ...]) -> None:
    report = patchwork.apply(exclude=["lib.core.*"])
    assert names(report) == {"lib.core.first": "skipped", "lib.core.second": "skipped", "lib.more.third": "pending"}
    assert report["lib.core.first"].detail == "left out by exclude="
    assert lib.load().f(1) == 1
    with pytest.raises(UnknownPatch, match="nothing"):
        patchwork.apply(exclude="nothing")


def test_the_environment_switches_patches_off_when_apply_is_called(
    lib: Library, known: tuple[Patch, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHWORK_DISABLE", " lib.core.second , lib.more.* ,")
    report = patchwork.apply()
    assert names(report) == {"lib.core.first": "pending", "lib.core.second": "skipped", "lib.more.third": "skipped"}
    assert report["lib.core.second"].detail == "switched off by PATCHWORK_DISABLE"
    monkeypatch.setenv("PATCHWORK_DISABLE", "lib.core.zeroth")
    with pytest.raises(UnknownPatch, match=r"lib\.core\.zeroth"):
        patchwork.apply()


def test_a_patch_for_other_versions_is_skipped_with_the_reason(lib: Library, known: tuple[Patch, ...]) -> None:
    for versions, state in [(">=2,<3", "pending"), ("==2.1", "pending"), ("<2.1", "skipped"), (">=2,!=2.1,<3", "skipped")]:
        report = patchwork.apply(lib.patch("f", ADD_ONE, versions={"lib": versions}))
        assert names(report) == {"own.patch": state}
        patchwork.revert()
    assert report["own.patch"].detail == "for lib >=2,!=2.1,<3; 2.1 is installed"


def test_drift_in_a_version_that_the_patch_is_not_for_is_no_error(lib: Library, known: tuple[Patch, ...]) -> None:
    patch = lib.patch("f", required("gone()").remove(), versions={"lib": "<2"})
    assert names(patchwork.apply(patch)) == {"own.patch": "skipped"}


@pytest.mark.parametrize(
    ("version", "state"), [("3.0.dev1", "pending"), ("3.0rc1", "pending"), ("3.0+cpu", "pending"), ("2.9", "skipped")]
)
def test_prereleases_and_local_versions_count(lib: Library, version: str, state: str) -> None:
    lib.write(CORE)
    distribution(lib, "lib", version)
    assert names(patchwork.apply(lib.patch("f", ADD_ONE, versions={"lib": ">=3.0.dev0"}))) == {"own.patch": state}


def test_the_version_of_the_imported_module_counts(lib: Library, known: tuple[Patch, ...]) -> None:
    lib.load("lib").__version__ = "1.5"
    report = patchwork.apply(lib.patch("f", ADD_ONE, versions={"lib": ">=2"}))
    assert report["own.patch"].detail == "for lib >=2; 1.5 is installed"


def test_a_version_that_cannot_be_compared_is_in_no_range(lib: Library, known: tuple[Patch, ...]) -> None:
    lib.load("lib").__version__ = "unknown"
    report = patchwork.apply(lib.patch("f", ADD_ONE, versions={"lib": ">=2"}))
    assert names(report) == {"own.patch": "skipped"}
    assert "unknown is installed" in report["own.patch"].detail


def test_a_package_that_is_not_installed_makes_its_patches_absent(lib: Library, known: tuple[Patch, ...]) -> None:
    report = patchwork.apply(
        lib.patch("f", ADD_ONE, name="own.a", versions={"lib": ">=2", "no-such-thing": ">=1"}),
        lib.patch("f", ADD_ONE, name="own.b", module="no_such_thing.core"),
    )
    assert names(report) == {"own.a": "absent", "own.b": "absent"}
    assert report["own.a"].detail == "no-such-thing is not installed"
    assert report["own.b"].detail == "no_such_thing is not installed"
    assert report.ok


def test_a_newer_release_than_the_last_checked_is_tried_and_marked(
    lib: Library, known: tuple[Patch, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert patchwork.apply("lib.core.first")["lib.core.first"].detail == "previewed; swapped when the module is imported"
    patchwork.revert()
    monkeypatch.setattr("patchwork.patches.TESTED", {"lib": "2.0"})
    outcome = patchwork.apply("lib.core.first")["lib.core.first"]
    assert outcome.state == "pending"
    assert "untested: lib 2.1 is newer than 2.0, the last one checked" in outcome.detail
    assert lib.load().f(1) == 2
    assert patchwork.status()["lib.core.first"].detail == "untested: lib 2.1 is newer than 2.0, the last one checked"


def test_drift_in_an_untested_release_is_an_error_all_the_same(lib: Library, known: tuple[Patch, ...]) -> None:
    lib.write("def f(x):\n    return None\n")
    with pytest.raises(PatchError):
        patchwork.apply()


PACK = """
    from patchwork import Patch, required

    EDIT = required("return x").replace("return x * 3")
    ONE = Patch(name="pack.h", target="lib.core:h", edits=[EDIT])
    PATCHES = [ONE]
    NOTHING = 5
    """


@pytest.mark.parametrize("value", ["lib.pack", "lib.pack:ONE", "lib.pack:PATCHES"])
def test_installed_packs_are_found(lib: Library, known: tuple[Patch, ...], value: str) -> None:
    lib.write(CORE, pack=PACK)
    distribution(lib, "pack", "1.0", f"[patchwork.patches]\npack = {value}\n")
    assert [patch.name for patch in all_patches()] == [*(patch.name for patch in known), "pack.h"]
    patchwork.apply("pack.*")
    assert lib.load().h(1) == 3


def test_an_entry_point_that_leads_to_no_patches_is_named(lib: Library, known: tuple[Patch, ...]) -> None:
    lib.write(CORE, pack=PACK)
    distribution(lib, "pack", "1.0", "[patchwork.patches]\npack = lib.pack:NOTHING\n")
    with pytest.raises(InvalidPatch, match=r"the entry point 'pack' of group 'patchwork\.patches' leads to int, not to patches"):
        patchwork.apply()


@pytest.mark.parametrize("value", ["lib.gone", "lib.pack:GONE"])
def test_a_pack_that_cannot_be_loaded_is_named(value: str, lib: Library, known: tuple[Patch, ...]) -> None:
    lib.write(CORE, pack=PACK)
    distribution(lib, "pack", "1.0", f"[patchwork.patches]\npack = {value}\n")
    with pytest.raises(InvalidPatch, match=rf"the pack '{value}' of entry-point group 'patchwork\.patches' cannot be loaded"):
        patchwork.apply()


def test_a_patch_given_twice_is_applied_and_listed_once(lib: Library, known: tuple[Patch, ...]) -> None:
    own = lib.patch("h", ADD_ONE, name="own.h")
    assert list(names(patchwork.apply(own, own))) == ["own.h"]
    assert list(names(patchwork.apply(known[0], known[0].name))) == [known[0].name]


def test_a_pack_that_takes_a_name_is_refused(lib: Library, known: tuple[Patch, ...]) -> None:
    lib.write(CORE, pack=PACK.replace("pack.h", "lib.core.first"))
    distribution(lib, "pack", "1.0", "[patchwork.patches]\npack = lib.pack\n")
    with pytest.raises(InvalidPatch, match=r"lib\.core\.first: two patches have this name"):
        patchwork.apply()


def test_a_report_can_be_read_by_name_as_values_and_as_text(lib: Library, known: tuple[Patch, ...]) -> None:
    own = lib.patch("f", required("gone()").remove(), name="own.f")
    report = patchwork.apply("lib.core.first", "lib.core.second", own, strict=False)
    assert report["own.f"].state == "failed"
    with pytest.raises(KeyError):
        report["own.g"]
    values = report.as_dict()
    assert values["ok"] is False
    [first, _, last] = values["outcomes"]  # type: ignore[misc]
    assert first["edits"] == ["replace at line 2"]
    assert first["error"] is None
    assert "required anchor not found: gone()" in last["error"]
    assert "own.f            failed   required anchor not found: gone()" in str(report)
    assert str(patchwork.revert()) == "no patches"


def test_an_error_survives_pickling_with_its_fields(lib: Library, known: tuple[Patch, ...]) -> None:
    with pytest.raises(AnchorMissing) as caught:
        patchwork.apply(lib.patch("f", required("gone()").remove()))
    error = caught.value
    error.extra = "a note"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.extra == "a note"


def test_applying_imports_no_target_and_nothing_heavy() -> None:
    script = (
        "import sys, patchwork; light = set(sys.modules); patchwork.apply(); "
        "print([name for name in ('torch', 'transformers', 'trl', 'libcst', 'typer') if name in sys.modules], "
        "[name for name in ('libcst', 'wrapt') if name in light])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[] []\n", "")


def test_patches_that_conflict_do_not_both_fit(lib: Library) -> None:
    """A preview of what is installed says what apply() would."""
    lib.write("def f(x):\n    return g(x)\ndef g(x):\n    return x\n")
    one = lib.patch("f", required("g(x)").replace("g(x + 1)"), name="one.a")
    two = lib.patch("f", required("g(x)").replace("g(x + 2)"), name="two.b")
    states = [item.outcome.state for item in previews([one, two])]
    assert sorted(states) == ["failed", "pending"]
    with pytest.raises(PatchConflict):
        patchwork.apply(one, two)
    assert [item.outcome.state for item in previews([two])] == ["pending"]


@pytest.mark.parametrize("first", [True, False])
def test_one_of_several_definitions_that_fits_is_patched_before_and_after_the_import(lib: Library, first: bool) -> None:
    fits, differs = "    def f(x):\n        return g(x)\n", "    def f(x):\n        return h(x)\n"
    lib.write(f"g = h = abs\nif {int(first)}:\n{fits if first else differs}else:\n{differs if first else fits}")
    patch = lib.patch("f", required("g(x)").replace("g(x) + 1"))
    [item] = previews([patch])
    assert item.outcome.state == "pending"
    assert "does not fit the definition at line" in item.outcome.detail
    assert patchwork.apply(patch)["own.patch"].state == "pending"
    assert lib.load().f(-2) == 3
    patchwork.revert()
    assert patchwork.apply(patch)["own.patch"].state == "applied"
    assert lib.load().f(-2) == 3


def test_where_the_living_one_of_several_definitions_does_not_fit_the_import_says_so(lib: Library) -> None:
    lib.write("g = h = abs\nif 0:\n    def f(x):\n        return g(x)\nelse:\n    def f(x):\n        return h(x)\n")
    patch = lib.patch("f", required("g(x)").replace("g(x) + 1"))
    assert patchwork.apply(patch)["own.patch"].state == "pending"
    for _ in range(2):
        with pytest.raises(AnchorMissing):
            lib.load()


def write_patches(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text("from patchwork import Case, Patch, required\n" + text)
    return str(path)


ONE = 'Patch("mine.one", "textwrap:shorten", [required("' + "' '.join($W)" + '").replace("' + "'-'.join($W)" + '")])'


def test_a_file_of_patches_is_named_by_its_path_and_one_of_them_behind_two_colons(tmp_path: Path) -> None:
    file = write_patches(tmp_path, f"PATCHES = [{ONE}, {ONE.replace('mine.one', 'mine.two')}]\nprint('hello')\n")
    assert [patch.name for patch in named([file])] == ["mine.one", "mine.two"]
    assert [patch.name for patch in named([f"{file}::*.two"])] == ["mine.two"]
    assert [patch.name for patch in named(["mine.py::mine.one"], tmp_path)] == ["mine.one"]
    error = AnchorMissing("x")
    tell_command(error, named([f"{file}::*.two"])[0], "lib")
    assert error.command == f"patchwork check {file}::mine.two --against 'lib'"
    assert [patch.name for patch in named([file, "trl.sft.collator"])] == ["trl.sft.collator", "mine.one", "mine.two"]
    with pytest.raises(UnknownPatch, match=r"mine\.three"):
        named([f"{file}::mine.three"])


def test_a_file_without_the_list_gives_every_patch_that_has_a_name(tmp_path: Path) -> None:
    assert [patch.name for patch in named([write_patches(tmp_path, f"own = {ONE}\n")])] == ["mine.one"]


def test_a_file_may_import_what_lies_beside_it_and_leaves_the_path_alone(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("NAME = 'mine.beside'\n")
    text = "from beside_it import NAME\n" + f"own = {ONE}".replace('"mine.one"', "NAME")
    before = list(sys.path)
    assert [patch.name for patch in named([write_patches(tmp_path, text)])] == ["mine.beside"]
    assert sys.path == before


def test_what_a_file_prints_is_no_output_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named([write_patches(tmp_path, f"print('hello')\nown = {ONE}\n")])
    assert capsys.readouterr() == ("", "hello\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1 / 0\n", "ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", "SystemExit"),
        ("x = (\n", "SyntaxError"),
        ("import nowhere\n", "No module named 'nowhere'"),
        ("x = 1\n", "holds no patches"),
        ("PATCHES = 3\n", "leads to int, not to patches"),
        ('own = Patch("a", "b", [])\n', "'b' is not a target"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidPatch) as caught:
        named([write_patches(tmp_path, text)])
    assert said in str(caught.value)
    assert "mine.py" in str(caught.value)


def test_a_file_whose_case_does_not_hold_is_refused(tmp_path: Path) -> None:
    case = ", cases=[Case(before='def shorten(t): return 1', after='def shorten(t): return 2')])"
    with pytest.raises(CaseFails, match=r"mine\.one: case 1 of 1 does not hold"):
        named([write_patches(tmp_path, "own = " + ONE.removesuffix(")") + case + "\n")])
