"""Modules loaded by somebody's import hook: patched where it leaves their code as it is, else refused by the hook's name."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import patchwork
from patchwork import ForeignPatch, PatchError, SourceMismatch, required

if TYPE_CHECKING:
    from conftest import Library

EDIT = required("return x").replace("return x + 1")
CORE = "def f(x: int):\n    return x\n"
Path = Any


def counted(tree: ast.Module) -> ast.Module:
    """A module whose functions begin with a statement more."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.parse("checked = True").body[0])
    return ast.fix_missing_locations(tree)


def wrapped(tree: ast.Module) -> ast.Module:
    """A module whose functions have a decorator of this test's more."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.append(ast.parse(f"__import__({__name__!r}, fromlist=['checking']).checking", mode="eval").body)
    return ast.fix_missing_locations(tree)


def checking(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def check(*args: object) -> object:
        return function(*args)

    return check


class Counting(importlib.machinery.SourceFileLoader):
    """Compiles other code than the file's, as typeguard does."""

    def source_to_code(self, data: Any, path: Path, *, _optimize: int = -1) -> types.CodeType:  # type: ignore[override]
        return compile(counted(ast.parse(data)), path, "exec", dont_inherit=True)


class Wrapping(importlib.machinery.SourceFileLoader):
    """Wraps the functions in a decorator of its own, as jaxtyping and beartype do."""

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(wrapped(ast.parse(self.get_data(self.path))), self.path, "exec", dont_inherit=True)


class Executing(importlib.abc.Loader):
    """Neither reads nor compiles by Python's own means, and gives no source."""

    def __init__(self, name: str, path: str) -> None:
        self.path = path

    def exec_module(self, module: types.ModuleType) -> None:
        with open(self.path) as stream:
            exec(compile(counted(ast.parse(stream.read())), self.path, "exec", dont_inherit=True), vars(module))


class Plain(importlib.machinery.SourceFileLoader):
    """Looks on, and leaves the code as it is."""

    def exec_module(self, module: types.ModuleType) -> None:
        super().exec_module(module)

    def source_to_code(self, data: Any, path: Path, *, _optimize: int = -1) -> types.CodeType:  # type: ignore[override]
        code: types.CodeType = super().source_to_code(data, path)
        return code


class Named(importlib.machinery.SourceFileLoader):
    """Changes nothing but its name."""


class Sourceless(importlib.abc.Loader):
    """Runs the file's own code, and gives no source."""

    def __init__(self, name: str, path: str) -> None:
        self.path = path

    def exec_module(self, module: types.ModuleType) -> None:
        with open(self.path) as stream:
            exec(compile(stream.read(), self.path, "exec", dont_inherit=True), vars(module))


class Hook(importlib.abc.MetaPathFinder):
    """Loads `lib.core` by the loader that it is given."""

    def __init__(self, loader: type) -> None:
        self.loader = loader

    def find_spec(self, name: str, path: Any = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if name != "lib.core" or found is None or found.origin is None:
            return None
        return importlib.util.spec_from_file_location(name, found.origin, loader=self.loader(name, found.origin))


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    return lambda loader: monkeypatch.setattr(sys, "meta_path", [Hook(loader), *sys.meta_path])


def refusal(lib: Library, *, imported: bool) -> PatchError:
    """How a patch is refused, at apply() or at the import that follows."""
    if imported:
        lib.load()
        with pytest.raises(PatchError) as caught:
            patchwork.apply(lib.patch("f", EDIT))
    else:
        assert patchwork.apply(lib.patch("f", EDIT))["own.patch"].state == "pending"
        with pytest.raises(PatchError) as caught:
            lib.load()
    return caught.value


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("loader", [Counting, Wrapping, Executing])
def test_a_loader_that_compiles_other_code_is_named(lib: Library, hook: Any, loader: type, imported: bool) -> None:
    lib.write(CORE)
    hook(loader)
    error = refusal(lib, imported=imported)
    assert type(error) is SourceMismatch
    assert error.what == (
        "f does not run the code that its file holds: lib.core was loaded by "
        f"{__name__}.{loader.__name__}, which compiles other code"
    )
    assert error.hint.startswith("leave lib.core out of that import hook")
    assert "before" not in error.hint  # the hook runs at the import, whenever apply() was called
    assert str(lib.path) in error.where


@pytest.mark.parametrize("loader", [Counting, Wrapping, Executing])
def test_the_advice_works(lib: Library, hook: Any, loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    lib.write(CORE)
    hook(loader)
    refusal(lib, imported=True)
    del sys.modules["lib.core"]
    monkeypatch.setattr(Hook, "find_spec", lambda *args: None)
    patchwork.apply(lib.patch("f", EDIT))
    assert lib.load().f(1) == 2


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("loader", [Plain, Named, Sourceless])
def test_a_loader_that_leaves_the_code_as_it_is_is_none_of_our_business(
    lib: Library, hook: Any, loader: type, imported: bool
) -> None:
    lib.write(CORE)
    hook(loader)
    core = lib.load() if imported else None
    patchwork.apply(lib.patch("f", EDIT))
    core = core or lib.load()
    assert type(getattr(core.__spec__.loader, "loader", core.__spec__.loader)) is loader
    assert (core.f(1), patchwork.status()["own.patch"].state) == (2, "applied")
    patchwork.revert()
    assert core.f(1) == 1


@pytest.mark.parametrize(("loader", "named"), [(Plain, True), (Named, False)])
def test_a_file_that_changed_is_told_as_that_too(lib: Library, hook: Any, loader: type, named: bool) -> None:
    lib.write(CORE)
    hook(loader)
    lib.load()
    lib.write("y = 1\ndef f(x):\n    y\n    return x\n")
    with pytest.raises(SourceMismatch, match="f does not run the code that its file holds") as caught:
        patchwork.apply(lib.patch("f", EDIT))
    assert (f"{loader.__name__}, which compiles" in caught.value.what) is named
    assert "the file changed after" in caught.value.hint


def test_somebody_else_who_wraps_under_a_hook_is_named_and_not_the_hook(lib: Library, hook: Any) -> None:
    lib.write(CORE)
    (lib.root / "other.py").write_text("from lib import core\ndef wrap(f):\n    return lambda x: f(x)\ncore.f = wrap(core.f)\n")
    hook(Plain)
    lib.load()
    importlib.import_module("other")
    with pytest.raises(ForeignPatch, match="f was replaced or wrapped by other"):
        patchwork.apply(lib.patch("f", EDIT))


def test_without_strict_the_other_patches_are_applied(lib: Library, hook: Any) -> None:
    lib.write(CORE, more=CORE)
    hook(Counting)
    core, more = lib.load(), lib.load("lib.more")
    patches = lib.patch("f", EDIT), lib.patch("f", EDIT, name="two.patch", module="lib.more")
    report = patchwork.apply(*patches, strict=False)
    assert [outcome.state for outcome in report] == ["failed", "applied"]
    assert (core.f(1), more.f(1)) == (1, 2)


def test_the_assertion_rewriter_of_pytest(lib: Library, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin's module is rewritten: a function with an assert is not the file's, one without is."""
    lib.write("def f(x):\n    assert x\n    return x\n\ndef g(x):\n    return x\n")
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
            import sys
            import pytest
            pytest.register_assert_rewrite("lib")
            import lib.core
            import patchwork
            from patchwork import Patch, required

            EDITS = [required("return x").replace("return x + 1")]

            def test_it():
                patchwork.apply(Patch("own.g", "lib.core:g", EDITS))
                assert lib.core.g(1) == 2
                with pytest.raises(patchwork.SourceMismatch) as caught:
                    patchwork.apply(Patch("own.f", "lib.core:f", EDITS))
                assert "lib.core was loaded by _pytest.assertion.rewrite.AssertionRewritingHook" in caught.value.what
                assert "leave lib.core out of that import hook" in caught.value.hint
            """)
    )
    monkeypatch.setenv("PYTHONPATH", str(lib.root))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path / "test_it.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
