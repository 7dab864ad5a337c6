"""`patchwork check` and `patchwork diff --against` as a user sees them: output, exit codes, no traceback and no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from patchwork.selection import all_patches

if TYPE_CHECKING:
    from conftest import Shelf

GOOD = "class PreTrainedModel:\n\tdef post_init(self):\n\t\tself.ready = True\n"
DRIFTED = GOOD.replace("post_init", "after_init")
NAME = "transformers.isolation.post_init"


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from patchwork.cli import main; main()", *arguments]
    settings = {**os.environ, "PYTHONPATH": str(path or "")}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    assert "Traceback" not in done.stderr
    return done


Keep = Callable[[], None]


@pytest.fixture
def releases(shelf: Shelf) -> Shelf:
    """transformers 5.0.0 to 5.2.0, drifted in 5.3.0; all before a range that begins with 4.57."""
    for version, source in (("4.0.0", ""), ("5.0.0", GOOD), ("5.1.0", GOOD), ("5.2.0", GOOD + "#"), ("5.3.0", DRIFTED)):
        files = {"transformers/__init__.py": "", "transformers/modeling_utils.py": source}
        shelf.wheel("transformers", version, files)
    return shelf


@pytest.fixture
def kept(releases: Shelf, keep: Keep) -> Shelf:
    """The same, all in the cache already."""
    keep()
    return releases


def test_equal_releases_are_one_line_and_failures_are_told_in_full(releases: Shelf) -> None:
    done = run("check", NAME, "--against", "transformers>=4")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        f"  absent   {NAME}  transformers 4.0.0  for transformers >=4.57",
        f"  applied  {NAME}  transformers 5.0.0 .. 5.2.0 (3 releases)",
        f"  failed   {NAME}  transformers 5.3.0  the module defines no function PreTrainedModel.post_init",
    ]
    assert "nearest: PreTrainedModel.after_init" in done.stdout
    assert "transformers-5.3.0-py3-none-any.whl/transformers/modeling_utils.py" in done.stdout
    assert lines[-1].startswith("1 patch on 5 releases: 3 applied, 0 native, 1 absent, 1 failed; ")
    assert "5 wheels downloaded (0.0 MB)" in lines[-1]
    assert done.stderr.splitlines() == ["wheels to download: 5", "modules to check: 3"]


def test_what_fits_exits_with_0_and_says_that_nothing_was_downloaded(releases: Shelf) -> None:
    assert run("check", NAME, "--against", "transformers==5.0").returncode == 0
    done = run("check", NAME, "--against", "transformers==5.0.0", "--against", "transformers==5.0")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].endswith("no download")
    assert "1 patch on 1 release: 1 applied" in done.stdout


def test_check_as_json(kept: Shelf) -> None:
    done = run("check", NAME, "--json", "--against", "transformers>=5.2")
    assert done.returncode == 1
    good, bad = json.loads(done.stdout)
    assert (good["patch"], good["package"], good["version"], good["state"]) == (NAME, "transformers", "5.2.0", "applied")
    assert [edit.rpartition(" at ")[2] for edit in good["edits"]] == ["line 3"]
    assert (bad["version"], bad["state"], bad["path"].rpartition("/")[2]) == ("5.3.0", "failed", "modeling_utils.py")
    assert "PreTrainedModel.after_init" in bad["error"]


def test_without_against_it_is_what_is_installed_here(tmp_path: Path) -> None:
    done = run("check", NAME)
    assert done.stdout.startswith("What is installed here (--against names releases, folders or wheels instead):\n")
    assert NAME in done.stdout
    assert [item["patch"] for item in json.loads(run("check", "--json").stdout)] == [patch.name for patch in all_patches()]


def test_diff_against_a_release_applies_to_its_source(kept: Shelf) -> None:
    done = run("diff", NAME, "--against", "transformers==5.0.0")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == [
        "--- a/transformers/modeling_utils.py\ttransformers 5.0.0",
        f"+++ b/transformers/modeling_utils.py\ttransformers 5.0.0, {NAME}",
    ]
    assert "+\t\tadopt(self)" in done.stdout.splitlines()
    [as_json] = json.loads(run("diff", NAME, "--json", "--against", "transformers==5.0.0").stdout)
    assert as_json["diff"] + "\n" == done.stdout


def test_diff_of_a_patch_that_does_not_fit_says_why(kept: Shelf) -> None:
    done = run("diff", NAME, "--against", "transformers==5.3.0")
    assert done.returncode == 1
    assert "the module defines no function PreTrainedModel.post_init" in done.stdout
    assert f"absent   {NAME}  transformers 4.0.0" in run("diff", NAME, "--against", "transformers==4.0.0").stdout


@pytest.mark.parametrize("text", ["transformers==9.9", "transformers>9", "transformers=5", "./nothing.whl", ""])
def test_what_names_nothing_is_wrong_use(releases: Shelf, text: str) -> None:
    done = run("check", NAME, "--against", text)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("  next: ")
    assert done.stdout == ""


def test_wrong_use_of_patches_and_folders(releases: Shelf, tmp_path: Path) -> None:
    assert "no patch is called 'nonsense'" in run("check", "nonsense", "--against", "transformers").stderr
    done = run("check", "trl.*", "--against", str(releases.folder / "transformers-5.0.0-py3-none-any.whl"))
    assert done.returncode == 2
    assert "no selected patch is for transformers 5.0.0" in done.stderr
    (tmp_path / "empty").mkdir()
    assert run("check", "--against", str(tmp_path / "empty")).returncode == 2


def test_a_release_without_a_wheel_stops_no_range(kept: Shelf) -> None:
    (kept.folder / "transformers-5.1.5.tar.gz").touch()
    (kept.folder / "transformers-5.1.6.zip").touch()
    arguments = ("--against", "transformers>=5,<5.3")
    done = run("check", NAME, *arguments)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == f"  applied  {NAME}  transformers 5.0.0 .. 5.2.0 (3 releases)"
    assert lines[2] == "not checked: transformers 5.1.5, 5.1.6 (only source archives)"
    assert lines[-1].startswith("1 patch on 3 releases (2 not checked): 3 applied, ")
    left = json.loads(run("check", NAME, "--json", *arguments).stdout)[3]
    assert (left["package"], left["version"], left["state"]) == ("transformers", "5.1.5", "not checked")
    assert "only source archives" in left["error"]
    done = run("diff", NAME, *arguments)
    assert (done.returncode, lines[2] in done.stdout.splitlines()) == (1, True)
    assert len(json.loads(run("diff", NAME, "--json", *arguments).stdout)) == 5
    done = run("check", NAME, "--against", "transformers==5.1.5")
    assert done.returncode == 2
    assert "there are only source archives of transformers 5.1.5" in done.stderr


def test_a_failure_of_neighbouring_releases_is_told_once(shelf: Shelf, keep: Keep) -> None:
    for number, source in enumerate(
        (DRIFTED, "#\n" + DRIFTED, DRIFTED + "#", GOOD, DRIFTED, "#\n\n" + DRIFTED.replace("after", "on"))
    ):
        shelf.wheel("transformers", f"5.{number}", {"transformers/__init__.py": "", "transformers/modeling_utils.py": source})
    keep()
    done = run("check", NAME, "--against", "transformers>=5")
    heads = [line for line in done.stdout.splitlines() if line.startswith("transformers")]
    assert heads == ["transformers 5.0 .. 5.2 (3 releases)", "transformers 5.4", "transformers 5.5"]
    assert "transformers-5.2-py3-none-any.whl" in done.stdout
    assert "transformers-5.1-py3-none-any.whl" not in done.stdout
    assert [item["state"] for item in json.loads(run("check", NAME, "--json", "--against", "transformers>=5").stdout)].count(
        "failed"
    ) == 5


def test_failures_that_differ_in_their_lines_alone_are_one(shelf: Shelf, keep: Keep, tmp_path: Path) -> None:
    text = "Patch(name='lib.patch', target='lib.core:f', edits=[required('a(1)').replace('b()')])"
    (tmp_path / "mine.py").write_text(f"from patchwork import Patch, required\nPATCHES = [{text}]\n")
    for number, call in enumerate(("a(2)", "a(2)", "a(2)", "a(x)")):
        shelf.lib(f"1.{number}", "\n" * number * 5 + f"def f():\n    return {call}\n")
    keep()
    out = run("check", str(tmp_path / "mine.py"), "--against", "lib>=1").stdout
    assert [line for line in out.splitlines() if line.startswith("lib")] == ["lib 1.0 .. 1.2 (3 releases)", "lib 1.3"]
    assert "lines 11-12" in out
    assert "lines 6-7" not in out


def test_releases_that_lack_the_module_are_one_line(shelf: Shelf) -> None:
    for version in ("5.0", "5.1"):
        shelf.wheel("transformers", version, {"transformers/__init__.py": ""})
    lines = run("check", NAME, "--against", "transformers>=5").stdout.splitlines()
    says = "transformers has no module transformers.modeling_utils"
    assert lines[:3] == [
        f"  failed   {NAME}  transformers 5.0 .. 5.1 (2 releases)  {says}",
        "",
        "transformers 5.0 .. 5.1 (2 releases)",
    ]


def test_the_same_release_from_two_places_is_told_by_its_places(kept: Shelf, wheels: Path) -> None:
    wheel = kept.folder / "transformers-5.1.0-py3-none-any.whl"
    done = run("check", NAME, "--against", "transformers>=5,<5.3", "--against", str(wheel))
    lines = done.stdout.splitlines()
    assert [line.partition(NAME)[2].strip() for line in lines[:4]] == [
        "transformers 5.0.0",
        f"transformers 5.1.0 ({wheels / wheel.name})",
        f"transformers 5.1.0 ({wheel})",
        "transformers 5.2.0",
    ]
    assert "1 patch on 4 releases: 4 applied" in lines[-1]


def test_a_folder_of_the_name_is_told(kept: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "transformers").mkdir(parents=True)
    (tmp_path / "here" / "transformers" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    done = run("check", NAME, "--against", "transformers")
    assert "transformers 5.3.0" in done.stdout
    assert done.stderr.endswith("transformers: the newest release; the folder ./transformers is meant by ./transformers\n")


def test_two_patches_of_one_name_are_refused_before_anything_is_fetched(releases: Shelf, wheels: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    text = "from patchwork import Patch, required\n"
    for number in (1, 2):
        text += f"p{number} = Patch(name={NAME!r}, target='transformers.x:f{number}', edits=[required('a()').replace('b()')])\n"
    file.write_text(text)
    for names in ([str(file)], [f"{file}::{NAME}", NAME]):
        done = run("check", *names, "--against", "transformers>=5")
        assert done.returncode == 2
        assert f"two patches are called {NAME}" in done.stderr
        assert f"{file}, of transformers.x:f2" in done.stderr
    assert "built in or of a pack" in done.stderr
    assert not wheels.exists()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_traceback(kept: Shelf, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # a buffer is written at the very end
    command = [
        sys.executable,
        "-c",
        "from patchwork.cli import main; main()",
        "check",
        NAME,
        "--against",
        "transformers>=5",
        *form,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
    assert process.returncode == 1


def test_no_network_and_a_damaged_wheel_exit_with_1(unplugged: None, tmp_path: Path) -> None:
    done = run("check", NAME, "--against", "transformers>=5")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    (tmp_path / "x.whl").write_bytes(b"PK")
    done = run("check", NAME, "--against", str(tmp_path / "x.whl"))
    assert (done.returncode, "cannot be opened" in done.stderr) == (1, True)


def test_no_pip_exits_with_1(releases: Shelf, tmp_path: Path) -> None:
    """The interpreter's own pip is hidden by a path hook, as in an environment that was made without it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'pip' else find(name, package)\n"
    )
    done = run("check", NAME, "--against", "transformers==5.0.0", path=tmp_path)
    assert done.returncode == 1
    assert "python -m ensurepip" in done.stderr


def test_neither_torch_nor_the_target_is_imported(kept: Shelf) -> None:
    code = (
        "import sys\nfrom patchwork.cli import app\n"
        f"try:\n    app(['check', {NAME!r}, '--against', 'transformers==5.0.0'])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'transformers', 'trl', 'libcst'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
