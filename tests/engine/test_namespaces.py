"""Targets in namespace packages of any depth: found, previewed and patched like others, with nothing imported on the way."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import patchwork
from patchwork import BrokenDependency, Patch, PatchError, SourceUnavailable, TargetMissing, required
from patchwork.api import previews
from patchwork.engine.environment.import_errors import FAILURES
from patchwork.engine.environment.installed import is_installed, spec_of

if TYPE_CHECKING:
    from conftest import Library

F = "def f(x):\n    return x + 1\n"
EDIT = required("x + 1").replace("x + 2")
NESTED = ["outer.mod", "outer.inner.mod", "outer.inner.deep.mod", "outer.inner.regular.mod", "outer.regular.inner.mod"]


def write(root: Path, module: str, source: str = F) -> None:
    """Write a module; of the packages around it, those called `regular` have an `__init__.py`."""
    folder = root
    for part in module.split(".")[:-1]:
        folder = folder / part
        folder.mkdir(exist_ok=True)
        if part == "regular":
            (folder / "__init__.py").touch()
    (folder / f"{module.rpartition('.')[2]}.py").write_text(source)
    importlib.invalidate_caches()


def patch_of(module: str, name: str = "own.patch") -> Patch:
    return Patch(name=name, target=f"{module}:f", edits=[EDIT])


def imported() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "outer"]


@pytest.mark.parametrize("module", NESTED)
def test_a_target_waits_for_its_import_and_is_patched_by_it(lib: Library, module: str) -> None:
    write(lib.root, module)
    assert [item.outcome.state for item in previews([patch_of(module)])] == ["pending"]
    assert patchwork.apply(patch_of(module))["own.patch"].state == "pending"
    assert imported() == []
    found = importlib.import_module(module)
    assert (found.f(1), patchwork.status()["own.patch"].state) == (3, "applied")
    patchwork.revert()
    assert found.f(1) == 2


@pytest.mark.parametrize("first", ["outer", "outer.inner"])
@pytest.mark.parametrize("module", NESTED[1:4])
def test_packages_around_the_target_that_are_imported_already(lib: Library, module: str, first: str) -> None:
    write(lib.root, module)
    importlib.import_module(first)
    assert patchwork.apply(patch_of(module))["own.patch"].state == "pending"
    assert module not in sys.modules
    assert importlib.import_module(module).f(1) == 3


@pytest.mark.parametrize("modules", [("outer.one", "outer.two"), ("outer.inner.one", "outer.inner.two")])
def test_a_namespace_is_spread_over_two_entries_of_the_path(
    lib: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, str]
) -> None:
    (tmp_path / "second").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    for root, module in zip((lib.root, tmp_path / "second"), modules, strict=True):
        write(root, module)
    report = patchwork.apply(*(patch_of(module, module) for module in modules))
    assert [outcome.state for outcome in report] == ["pending", "pending"]
    assert imported() == []
    assert [importlib.import_module(module).f(1) for module in modules] == [3, 3]


def test_a_package_before_a_portion_of_the_same_name_hides_it_as_it_does_from_an_import(
    lib: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "second").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    write(lib.root, "outer.inner.regular.mod")
    write(tmp_path / "second", "outer.inner.regular.other")
    assert patchwork.apply(patch_of("outer.inner.regular.other"))["own.patch"].state == "pending"
    with pytest.raises(TargetMissing):
        patchwork.apply(patch_of("outer.inner.regular.mod", "own.hidden"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("outer.inner.regular.mod")


@pytest.mark.parametrize(
    "missing", ["outer.gone", "outer.gone.mod", "outer.inner.gone", "outer.inner.gone.mod", "outer.inner.mod.x"]
)
def test_a_module_that_is_missing_at_any_level_is_a_missing_target(lib: Library, missing: str) -> None:
    write(lib.root, "outer.inner.mod")
    with pytest.raises(TargetMissing, match=f"there is no module {missing}") as caught:
        patchwork.apply(patch_of(missing))
    assert str(lib.root / "outer") in caught.value.where
    assert patchwork.apply(patch_of(missing), strict=False)["own.patch"].state == "failed"
    assert [item.outcome.state for item in previews([patch_of(missing)])] == ["failed"]
    assert imported() == []


def test_a_top_level_package_that_is_missing_is_absent(lib: Library) -> None:
    assert patchwork.apply(patch_of("outer.inner.mod"))["own.patch"].state == "absent"


def test_a_namespace_package_itself_has_no_code(lib: Library) -> None:
    write(lib.root, "outer.inner.mod")
    for module in ("outer", "outer.inner"):
        with pytest.raises(SourceUnavailable, match=f"{module} is a namespace package, which has no code of its own"):
            patchwork.apply(patch_of(module))


def test_the_command_line_checks_installed_targets_and_those_of_a_tree(lib: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lib.root, "outer.inner.mod")
    head = "from patchwork import Patch, required\nP = Patch('own.patch', 'outer.inner.mod:f', "
    edits = "[required('x + 1').replace('x + 2')]"
    (lib.root / "here.py").write_text(f"{head}{edits})\n")
    (lib.root / "there.py").write_text(f"{head}{edits}, versions={{'outer': '>=1'}})\n")
    monkeypatch.setenv("PYTHONPATH", str(lib.root))
    for chosen in (["check", "here.py"], ["diff", "here.py"], ["check", "there.py", "--against", str(lib.root)]):
        command = [sys.executable, "-c", "from patchwork.cli import main; main()", *chosen]
        done = subprocess.run(command, cwd=lib.root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "own.patch" in done.stdout


class Failing:
    """A finder that raises for one module what its author did not think of."""

    def __init__(self, name: str, error: BaseException) -> None:
        self.name = name
        self.error = error

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.name:
            raise self.error


@pytest.mark.parametrize("error", [kind("why") for kind in FAILURES], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("name", ["outer", "outer.inner"])
def test_whatever_a_finder_raises_is_an_error_of_the_patch(
    lib: Library, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    write(lib.root, "outer.inner.mod")
    write(lib.root, "regular.mod")
    monkeypatch.setattr(sys, "meta_path", [Failing(name, error), *sys.meta_path])
    with pytest.raises(PatchError) as caught:
        patchwork.apply(patch_of("outer.inner.mod"))
    assert type(caught.value) is BrokenDependency
    assert f"{name} cannot be imported: {type(error).__name__}: " in caught.value.what
    report = patchwork.apply(patch_of("outer.inner.mod"), patch_of("regular.mod", "two.patch"), strict=False)
    assert [outcome.state for outcome in report] == ["failed", "pending"]


def test_a_key_error_about_anything_else_is_no_namespace(lib: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    write(lib.root, "outer.inner.mod")
    monkeypatch.setattr(sys, "meta_path", [Failing("outer.inner", KeyError("inner")), *sys.meta_path])
    with pytest.raises(BrokenDependency, match="KeyError: 'inner'"):
        spec_of("outer.inner.mod")
    assert is_installed("outer")
