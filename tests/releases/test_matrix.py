"""`patchwork matrix` on tiny wheels in a folder, without a network: expectation against fact, updates, newer releases."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.text import Text

from patchwork import cli, patches
from patchwork.commands import matrix_text
from patchwork.engine.patch import Patch, required
from patchwork.releases import expectations, matrix
from patchwork.selection import newest_tested

CORE = """\
def old():
    return 1


def new():
    return 2


def f():
    return {f}()


def g():
    value = {g}()
    return value
"""
# What the two functions call in each release. 1.0.0 to 2.0.0 are listed, the others are newer.
CALLS = {
    "1.0.0": ("old", "old"),
    "1.1.0": ("old", "old"),
    "1.9.0": ("new", "old"),
    "2.0.0": ("new", "old"),
}
PATCHES = (
    Patch(
        name="lib.one",
        target="lib.core:f",
        versions={"lib": ">=1"},
        edits=[required("old()").replace("new()")],
        fixed_when="new()",
    ),
    Patch(
        name="lib.two", target="lib.core:g", versions={"lib": ">=1.1"}, edits=[required("value = old()").replace("value = new()")]
    ),
)
FILE = """\
packages:
  lib:
    releases:
      - 1.0.0
      - 1.1.0
      - 1.9.0
      - 2.0.0  # the newest
  other: {releases: [1.0.0]}

# What comes out.
expected:
  lib.one: {applied: "<1.9", native: ">=1.9"}  # repaired upstream
  lib.two: {absent: "<1.1", applied: ">=1.1"}
cells:
  - {python: "3.11", lib: 2.0.0}
"""
Run = Callable[..., tuple[int, str, str]]


def make_wheel(folder: Path, package: str, version: str, f: str = "old", g: str = "old") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-{version}-py3-none-any.whl"
    info = f"{package}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{package}/__init__.py", "")
        archive.writestr(f"{package}/core.py", CORE.format(f=f, g=g))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes for the index; what is listed lies in the cache already."""
    folder, cache = tmp_path / "index", tmp_path / "cache"
    for version, calls in CALLS.items():
        make_wheel(folder, "lib", version, *calls)
    make_wheel(folder, "other", "1.0.0")
    shutil.copytree(folder, cache / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(cache))
    monkeypatch.setattr("patchwork.patches.PATCHES", PATCHES)
    monkeypatch.chdir(tmp_path)
    Path("compat_matrix.yaml").write_text(FILE)
    return folder


@pytest.fixture
def run(index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`patchwork matrix ARGUMENTS`: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["patchwork", "matrix", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        done = capsys.readouterr()
        assert "Traceback" not in done.err
        return int(ended.value.code or 0), done.out, done.err

    return run


def text() -> str:
    return Path("compat_matrix.yaml").read_text()


def change(old: str, new: str) -> None:
    assert old in text()
    Path("compat_matrix.yaml").write_text(text().replace(old, new, 1))


def test_all_as_expected(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert out.splitlines()[:3] == [
        "lib  4 releases, 1.0.0 .. 2.0.0",
        "  lib.one  ++==  applied 1.0.0 .. 1.1.0, native 1.9.0 .. 2.0.0",
        "  lib.two  .+++  absent 1.0.0, applied 1.1.0 .. 2.0.0",
    ]
    assert "other  1 release, 1.0.0: no patch is for it" in out
    assert "2 patches on lib (4 releases): 2 as expected, 0 not, 0 failed; " in out


def test_what_is_not_as_expected_is_marked_and_names_the_line(run: Run) -> None:
    change('applied: "<1.9", native: ">=1.9"', 'applied: "<1.1", native: ">=1.1"')
    code, out, _ = run()
    assert code == 1
    lines = out.splitlines()
    assert lines[1:3] == ["  lib.one  ++==  applied 1.0.0 .. 1.1.0, native 1.9.0 .. 2.0.0", "            ^"]
    assert "lib.one on lib 1.1.0: expected native, found applied (compat_matrix.yaml:12)" in out
    assert "1 as expected, 1 not, 0 failed" in out


def test_a_failure_is_shown_in_full_and_never_written(run: Run, index: Path) -> None:
    for version in ("1.9.0", "2.0.0"):
        make_wheel(index.parent / "cache" / "wheels", "lib", version, "new", "other")
    before = text()
    code, out, err = run("--update", "--yes")
    assert code == 1
    assert "  lib.two  .+!!  absent 1.0.0, applied 1.1.0, failed 1.9.0 .. 2.0.0" in out
    assert "lib.two fails on lib 1.9.0 .. 2.0.0 (2 releases, here the last)" in out
    assert "required anchor not found: value = old()" in out
    assert "nearest:" in out
    assert "1 as expected, 0 not, 1 failed" in out
    assert "Nothing is written" in err
    assert text() == before


def test_an_update_writes_what_was_found_and_nothing_else(run: Run) -> None:
    change('applied: "<1.9", native: ">=1.9"', 'applied: ">=1"')
    change('  lib.two: {absent: "<1.1", applied: ">=1.1"}\n', "")
    code, _, err = run("--update", "--yes")
    assert code == 0
    assert "lib.one\n  - applied >=1\n  + applied >=1.0.0,<1.9.0, native >=1.9.0\n" in err
    assert "lib.two\n  - nothing\n  + absent >=1.0.0,<1.1.0, applied >=1.1.0\n" in err
    written = text()
    assert written == FILE.replace('"<1.9", native: ">=1.9"', '">=1.0.0,<1.9.0", native: ">=1.9.0"').replace(
        '"<1.1", applied: ">=1.1"', '">=1.0.0,<1.1.0", applied: ">=1.1.0"'
    )
    code, _, err = run("--update", "--yes")
    assert (code, text()) == (0, written)
    assert "The file says so already." in err
    assert run()[0] == 0


def test_an_update_without_a_terminal_or_yes_writes_nothing(run: Run) -> None:
    change("<1.9", "<1.8")
    change(">=1.9", ">=1.1")
    change("<1.8", "<1.1")
    before = text()
    code, _, err = run("--update")
    assert (code, text()) == (1, before)
    assert "  + applied >=1.0.0,<1.9.0, native >=1.9.0" in err
    assert "Nothing is written; --yes agrees." in err


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_an_update_asks_at_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    change('applied: "<1.9", native: ">=1.9"', 'applied: ">=1"')
    before = text()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: answer == "y")
    assert run("--update")[0] == code
    assert (text() == before) == (answer == "n")


def test_an_update_of_one_package_leaves_the_others(run: Run) -> None:
    change('applied: "<1.9", native: ">=1.9"', 'applied: ">=1"')
    before = text()
    code, out, _ = run("--package", "other", "--update", "--yes")
    assert (code, text()) == (0, before)
    assert "lib.one" not in out


def test_a_package_may_be_written_in_any_way(run: Run) -> None:
    change("  lib:\n", "  Lib:\n")
    change("lib: 2.0.0", "Lib: 2.0.0")
    assert run("--package", "LIB")[1].startswith("Lib  4 releases")


def test_a_file_may_be_about_patches_of_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text(
        "from patchwork import Patch, required\n"
        "PATCHES = [Patch(name='mine.new', target='lib.core:new', edits=[required('return 2').replace('return 3')])]\n"
    )
    (tmp_path / "sub" / "m.yaml").write_text("packages: {lib: {releases: [1.0.0, 2.0.0]}}\npatches: [mine.py]\nexpected: {}\n")
    assert run("--file", "sub/m.yaml", "--update", "--yes")[0] == 0
    assert (tmp_path / "sub" / "m.yaml").read_text().endswith('expected:\n  mine.new: {applied: ">=1.0.0"}\n')
    code, out, _ = run("--file", "sub/m.yaml")
    assert (code, out.splitlines()[1]) == (0, "  mine.new  ++  applied 1.0.0 .. 2.0.0")


def test_no_newer_release(run: Run) -> None:
    code, out, _ = run("--new")
    assert (code, out) == (0, "No release is newer than the listed ones.\n\n")


def test_newer_releases_that_come_out_as_expected_are_added(run: Run, index: Path) -> None:
    for version in ("0.9.0", "1.1.3", "1.9.1", "1.9.2", "1.5.0", "2.1.0", "2.1.1", "3.0.0", "3.1.0rc1"):
        make_wheel(index, "lib", version, "old" if version.startswith("1.1") else "new", "old")
    code, out, _ = run("--new")
    assert code == 0
    assert "New releases of lib: 1.1.3 (after 1.1.0), 1.9.2 (after 1.9.0), 2.1.1, 3.0.0" in out
    assert "  lib.one  +===  applied 1.1.3, native 1.9.2 .. 3.0.0" in out
    assert "4 wheels downloaded" in out
    assert text() == FILE
    code, _, err = run("--new", "--update", "--yes")
    assert code == 0
    assert "lib: 1.9.2 in place of 1.9.0" in err
    assert "lib: 2.1.1, 3.0.0 added" in err
    assert text() == FILE.replace("- 1.1.0", "- 1.1.3").replace("- 1.9.0", "- 1.9.2").replace(
        "# the newest\n", "# the newest\n      - 2.1.1\n      - 3.0.0\n"
    )
    assert run("--new")[:2] == (0, "No release is newer than the listed ones.\n\n")


def test_a_newer_release_takes_the_place_of_the_old_one_in_cells_too(run: Run, index: Path) -> None:
    make_wheel(index, "lib", "2.0.1", "new", "old")
    assert run("--new", "--update", "--yes")[0] == 0
    assert text() == FILE.replace("2.0.0", "2.0.1")


def test_a_newer_release_that_differs_changes_the_open_range(run: Run, index: Path) -> None:
    make_wheel(index, "lib", "2.1.0", "old", "old")
    code, out, _ = run("--new")
    assert code == 1
    assert "lib.one on lib 2.1.0: expected native, found applied (compat_matrix.yaml:12)" in out
    assert run("--new", "--update", "--yes")[0] == 0
    assert 'lib.one: {applied: [">=1.0.0,<1.9.0", ">=2.1.0"], native: ">=1.9.0,<2.1.0"}  # repaired upstream' in text()
    assert 'lib.two: {absent: "<1.1", applied: ">=1.1"}' in text()
    assert run()[0] == 0


def test_a_release_that_is_replaced_counts_no_more(run: Run, index: Path) -> None:
    make_wheel(index, "lib", "2.0.1", "old", "old")
    assert run("--new", "--update", "--yes")[0] == 0
    assert 'lib.one: {applied: [">=1.0.0,<1.9.0", ">=2.0.1"], native: ">=1.9.0,<2.0.1"}' in text()
    make_wheel(index, "lib", "1.9.1", "old", "old")
    assert run("--new", "--update", "--yes")[0] == 0
    assert 'lib.one: {applied: ">=1.0.0"}' in text()
    assert run()[0] == 0


def test_a_listed_release_that_the_index_lost_is_not_replaced_by_an_older_one(run: Run) -> None:
    change("- 1.1.0", "- 1.1.5")
    assert run("--new")[:2] == (0, "No release is newer than the listed ones.\n\n")


def test_a_newer_release_that_fails_reports_the_near_miss(run: Run, index: Path) -> None:
    make_wheel(index, "lib", "2.1.0", "new", "older")
    code, out, err = run("--new", "--format", "markdown", "--update", "--yes")
    assert code == 1
    assert "New releases of lib: 2.1.0" in out
    assert "| `lib.two` | lib | failed 2.1.0 | **no** |" in out
    assert "## lib.two fails on lib 2.1.0" in out
    assert "value = older()" in out
    assert "lib 2.0.0" in out  # the last release where it matched
    assert "Nothing is written" in err
    assert text() == FILE


def test_json_holds_everything(run: Run) -> None:
    change('applied: "<1.9", native: ">=1.9"', 'applied: ">=1"')
    code, out, _ = run("--json", "--update")
    found = json.loads(out)
    assert code == 1
    assert (found["ok"], found["downloads"]) == (False, {"wheels": 0, "bytes": 0})
    one = found["patches"][0]
    assert one["states"] == {"1.0.0": "applied", "1.1.0": "applied", "1.9.0": "native", "2.0.0": "native"}
    assert one["mismatches"][0] == {
        "release": "1.9.0",
        "expected": "applied",
        "found": "native",
        "where": "compat_matrix.yaml:12",
    }
    assert found["changes"]["lib.one"]["to"] == {"applied": [">=1.0.0,<1.9.0"], "native": [">=1.9.0"]}
    assert json.loads(run("--format", "json")[1])["patches"] == found["patches"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_table_fits_its_width_and_breaks_no_run(index: Path, width: int) -> None:
    file = expectations.read(Path("compat_matrix.yaml"), PATCHES)
    states = [(f"5.{minor}.0", "absent" if minor < 4 or minor > 30 else "applied") for minor in range(36)]
    comparison = matrix.Comparison("transformers.gated_delta.qwen3_5_moe", "lib", tuple(states))
    facts = matrix.Facts((), 0.0, 0, 0)
    result = matrix_text.Result(file, {"lib": [release for release, _ in states]}, facts, [comparison], None, {})
    lines = [Text.from_markup(line).plain for line in matrix_text.table(result, width)][1:-3]
    assert max(len(line) for line in lines) <= max(width, 2 + 36 + 2 + 36)
    for run in ("absent 5.0.0 .. 5.3.0", "applied 5.4.0 .. 5.30.0", "absent 5.31.0 .. 5.35.0"):
        assert sum(run in line for line in lines) == 1


@pytest.mark.parametrize(
    ("old", "new", "where", "says"),
    [
        ("- 1.1.0", "- 1.1.1", "compat_matrix.yaml:5", "lib 1.1.1"),
        ("lib.two", "lib.twice", "compat_matrix.yaml:13", "no patch is called 'lib.twice'"),
        ('"<1.9"', '"<=1.9"', "compat_matrix.yaml:12", "overlap"),
    ],
)
def test_a_wrong_file_is_wrong_use_with_file_and_line(run: Run, old: str, new: str, where: str, says: str) -> None:
    change(old, new)
    code, out, err = run()
    assert (code, out) == (2, "")
    assert says in err
    assert f"where: {where}" in err


def test_a_file_that_is_not_there_is_wrong_use(run: Run) -> None:
    code, _, err = run("--file", "nowhere.yaml")
    assert code == 2
    assert "where: nowhere.yaml" in err
    code, _, err = run("--package", "lob")
    assert code == 2
    assert "nearest: lib" in err


def test_no_network_falls_short_and_names_the_line(run: Run, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index.parent / "cache" / "wheels" / "lib-1.9.0-py3-none-any.whl").unlink()
    for name, value in {"NO_INDEX": "0", "FIND_LINKS": "", "INDEX_URL": "http://127.0.0.1:9", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    code, _, err = run()
    assert code == 1
    assert "where: compat_matrix.yaml:6" in err
    assert "--against" not in err
    assert "folder" not in err


def test_a_listed_release_without_a_wheel_names_its_line_and_no_folder(run: Run, index: Path) -> None:
    change("- 1.9.0", "- 1.9.5")
    (index / "lib-1.9.5.tar.gz").touch()
    code, _, err = run()
    assert code == 2
    assert "there are only source archives of lib 1.9.5" in err
    assert "where: compat_matrix.yaml:6" in err
    assert "folder" not in err


def test_the_newest_tested_releases_are_the_last_ones_listed() -> None:
    """An installed patchwork has no matrix file, so `TESTED` repeats what it says."""
    file = yaml.safe_load((Path(__file__).parents[2] / "compat_matrix.yaml").read_text())
    listed = {name: str(package["releases"][-1]) for name, package in file["packages"].items()}
    concerned = {expectations.package_of(patch, listed) for patch in patches.PATCHES}
    assert newest_tested() == {name: release for name, release in listed.items() if name in concerned}
