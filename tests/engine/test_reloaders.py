"""Reloaders of notebooks: they load an edited module again and put the new code into the functions that others hold.

Two ways are in use. One reloads the module and gives the old functions the code of the new ones; the other compiles the changed
functions alone and puts their code into the living ones, under a file name and lines of its own.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import patchwork
from patchwork import ForeignPatch, SourceMismatch, parameter, required

if TYPE_CHECKING:
    from conftest import Library

EDIT = required("return $X").replace("return $X + 100")
CORE = """
    class C:
        def m(self):
            return {n}

    def f(x):
        return x * {n}

    def same(x):
        return x
    """
Reload = Callable[[types.ModuleType], None]


def pairs(old: object, new: object) -> list[tuple[types.FunctionType, types.FunctionType]]:
    """The functions of an old object and of the new one in its place."""
    if isinstance(old, types.FunctionType) and isinstance(new, types.FunctionType):
        return [(old, new)]
    if isinstance(old, type) and isinstance(new, type):
        return [pair for name, item in vars(old).items() if name in vars(new) for pair in pairs(item, vars(new)[name])]
    return []


class Whole:
    """Reloads the module; whatever it held at any time gets the code of what it holds now."""

    def __init__(self) -> None:
        self.held: list[tuple[str, object]] = []

    def __call__(self, module: types.ModuleType) -> None:
        self.held += [(name, item) for name, item in vars(module).items() if getattr(item, "__module__", "") == module.__name__]
        kept = {name: vars(module)[name] for name in ("__name__", "__loader__")}
        vars(module).clear()
        vars(module).update(kept)
        importlib.reload(module)
        for name, old in self.held:
            for one, two in pairs(old, vars(module).get(name)):
                one.__code__, one.__defaults__, one.__dict__ = two.__code__, two.__defaults__, two.__dict__


class Each:
    """Puts the code of each function that changed into the living one, which stays; `shifted`: its lines begin at 1."""

    def __init__(self, shifted: bool, named: bool) -> None:
        self.shifted = shifted
        self.named = named

    def __call__(self, module: types.ModuleType) -> None:
        assert module.__file__ is not None
        with open(module.__file__) as stream:
            tree = ast.parse(stream.read())
        for node in tree.body:
            holder = vars(module)[node.name] if isinstance(node, ast.ClassDef) else module
            for one in node.body if isinstance(node, ast.ClassDef) else [node]:
                assert isinstance(one, ast.FunctionDef)
                self.put(vars(holder)[one.name], one, module)

    def put(self, function: types.FunctionType, node: ast.FunctionDef, module: types.ModuleType) -> None:
        if node.name == "same":
            return
        made: dict[str, types.FunctionType] = {}
        tree = ast.parse(ast.unparse(node)) if self.shifted else ast.Module([node], [])
        name = function.__code__.co_filename if self.named else "<string>"
        exec(compile(tree, name, "exec", dont_inherit=True), vars(module), made)
        new = made[node.name]
        function.__code__, function.__kwdefaults__, function.__dict__ = new.__code__, new.__kwdefaults__, new.__dict__


RELOADERS = {
    "whole": Whole,
    "each, lines kept": lambda: Each(shifted=False, named=True),
    "each": lambda: Each(shifted=True, named=True),
    "each, nameless": lambda: Each(shifted=True, named=False),
}


@pytest.fixture(params=RELOADERS)
def reload(request: pytest.FixtureRequest) -> Reload:
    return RELOADERS[request.param]()


def patches(lib: Library) -> list[patchwork.Patch]:
    return [lib.patch(name, EDIT, name=f"own.{name}") for name in ("f", "C.m")]


def test_each_edit_is_patched_again_also_in_what_others_hold(lib: Library, reload: Reload) -> None:
    core = lib.write(CORE.format(n=1)).load()
    f, c = core.f, core.C()
    patchwork.apply(*patches(lib))
    assert (f(1), c.m()) == (101, 101)
    for n in (2, 3, 4):
        lib.write("\n" * n + CORE.format(n=n))
        reload(core)
        assert (core.f(1), f(1), core.C().m(), c.m()) == (n, n, n, n)
        assert {outcome.state for outcome in patchwork.status()} == {"failed"}
        report = patchwork.apply(*patches(lib))
        assert {outcome.state for outcome in report} == {outcome.state for outcome in patchwork.status()} == {"applied"}
        assert (core.f(1), f(1), core.C().m(), c.m()) == (100 + n,) * 4
        assert "return x * " in inspect.getsource(core.f)
        assert "+ 100" in inspect.getsource(core.f)
    patchwork.revert()
    assert (core.f(1), f(1), core.C().m(), c.m()) == (4, 4, 4, 4)


def test_one_of_two_patches_stays_in_what_others_hold(lib: Library) -> None:
    core, reload = lib.write(CORE.format(n=1)).load(), Whole()
    f = core.f
    both = [lib.patch("f", EDIT, name="own.a"), lib.patch("f", parameter("k", default="7"), name="own.b")]
    patchwork.apply(*both)
    lib.write("\n" + CORE.format(n=2))
    reload(core)
    patchwork.apply(*both)
    assert (f(1), f(1, k=2), core.f(1, k=2)) == (102, 102, 102)
    patchwork.revert("own.a")
    assert (f(1, k=2), core.f(1, k=2)) == (2, 2)
    patchwork.revert()
    assert (f(1), core.f(1)) == (2, 2)
    with pytest.raises(TypeError):
        core.f(1, k=2)


def test_an_edit_that_the_reloader_has_not_seen_is_a_mismatch(lib: Library, reload: Reload) -> None:
    core = lib.write(CORE.format(n=1)).load()
    patchwork.apply(*patches(lib))
    lib.write("\n" + CORE.format(n=2))
    reload(core)
    lib.write("\n\n" + CORE.format(n=3))
    with pytest.raises((SourceMismatch, ForeignPatch), match=r"does not run the code that its file holds|or by a reloader"):
        patchwork.apply(*patches(lib))
    with pytest.warns(UserWarning, match="was given other code"):
        patchwork.revert()
    assert core.f(1) == 2


def test_the_same_code_over_other_globals_is_no_function_of_the_module(lib: Library) -> None:
    core = lib.write(CORE.format(n=1)).load()
    elsewhere: dict[str, types.FunctionType] = {}
    exec("\ndef f(x):\n    return x * 1\n", elsewhere)
    core.f = elsewhere["f"]
    with pytest.raises(ForeignPatch, match="f was replaced or wrapped by"):
        patchwork.apply(lib.patch("f", EDIT))


def test_code_under_another_name_that_does_something_else_is_a_mismatch(lib: Library) -> None:
    core = lib.write(CORE.format(n=1)).load()
    exec("def f(x):\n    return x * 2\n", vars(core))
    with pytest.raises(SourceMismatch, match="f does not run the code that its file holds"):
        patchwork.apply(lib.patch("f", EDIT))
