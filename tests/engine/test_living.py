"""What a swap keeps of a living function: everything that is not the edited code."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import inspect
import linecache
import pickle
import subprocess
import sys
import textwrap
import traceback
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import patchwork
from patchwork import (
    ForeignPatch,
    MissingName,
    SourceMismatch,
    SourceUnavailable,
    TargetMissing,
    Unswappable,
    at_start,
    parameter,
    required,
)

if TYPE_CHECKING:
    from conftest import Library

Load = Callable[[str], types.ModuleType]
ADD_ONE = required("return $X").replace("return $X + 1")


def test_zero_argument_super_is_kept(lib: Library, loaded: Load) -> None:
    core = loaded("""
        class A:
            def f(self):
                return 1

        class B(A):
            def f(self):
                x = super().f()
                return x
        """)
    patchwork.apply(lib.patch("B.f", ADD_ONE))
    assert core.B().f() == 2
    assert core.B.f.__closure__[0].cell_contents is core.B


def test_a_replacement_that_brings_super_is_refused_in_a_sentence(lib: Library, loaded: Load) -> None:
    core = loaded("class C:\n    def f(self):\n        return 1\n")
    with pytest.raises(Unswappable, match=r"the edit makes C\.f use __class__ of an enclosing scope"):
        patchwork.apply(lib.patch("C.f", required("return 1").replace("return super().f()")))
    assert core.C().f() == 1


def test_a_replacement_that_brings_super_is_refused_before_the_import_too(lib: Library) -> None:
    lib.write("class C:\n    def f(self):\n        return 1\n")
    with pytest.raises(Unswappable, match="__class__"):
        patchwork.apply(lib.patch("C.f", required("return 1").replace("return super().f()")))


def test_the_last_use_of_super_may_go(lib: Library, loaded: Load) -> None:
    core = loaded("class C:\n    def f(self):\n        return super().__repr__()\n")
    patchwork.apply(lib.patch("C.f", required("return super().__repr__()").replace("return 5")))
    assert core.C().f() == 5
    assert core.C.f.__code__.co_freevars == ("__class__",)


def test_the_last_use_of_super_may_go_before_the_import(lib: Library) -> None:
    lib.write("class C:\n    def f(self):\n        return super().__repr__()\n")
    patchwork.apply(lib.patch("C.f", required("return super().__repr__()").replace("return 5")))
    assert lib.load().C().f() == 5


def test_an_enclosing_variable_made_a_local_is_refused(lib: Library) -> None:
    source = "class C:\n    def f(self):\n        return super().__repr__()\n"
    lib.write(source)
    patch = lib.patch("C.f", required("return super().__repr__()").replace("__class__ = 5\nreturn __class__"))
    for _ in range(2):  # before the import and after
        with pytest.raises(Unswappable, match=r"makes __class__, which C\.f took from an enclosing scope, a name of its own"):
            patchwork.apply(patch)
        lib.load()


def test_private_names_are_those_of_the_class(lib: Library, loaded: Load) -> None:
    core = loaded(
        "class _C:\n    __v = 3\n    def __f(self):\n        return self.__v\n    def g(self):\n        return self.__f()\n"
    )
    patchwork.apply(lib.patch("_C.__f", required("return self.__v").replace("return self.__v + self.__v")))
    assert core._C().g() == 6


DECORATED = """
    import functools

    calls = []

    def register(f):
        calls.append(f.__name__)
        return f

    def double(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return 2 * f(*args, **kwargs)
        return wrapper

    def unnamed(f):
        def inner(*args):
            return -f(*args)
        return inner

    class Counted:
        def __init__(self, f):
            functools.update_wrapper(self, f)
            self.count = 0

        def __call__(self, *args):
            self.count += 1
            return self.__wrapped__(*args)

    @register
    @double
    @unnamed
    def f(x):
        return x

    @Counted
    def g(x):
        return x
    """


def test_decorators_run_once_and_stay_active(lib: Library, loaded: Load) -> None:
    core = loaded(DECORATED)
    outer = core.f
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f is outer
    assert core.f(1) == -4
    assert core.calls == ["inner"]


def test_a_decorator_that_is_a_class_of_the_library_stays(lib: Library, loaded: Load) -> None:
    core = loaded(DECORATED)
    patchwork.apply(lib.patch("g", ADD_ONE))
    assert core.g(1) == 2
    assert core.g.count == 1


def test_a_decorator_of_another_package_named_on_the_definition_is_no_foreign_patch(lib: Library) -> None:
    lib.write("from other.deco import double\n\n@double\ndef f(x):\n    return x\n")
    (lib.root / "other").mkdir()
    (lib.root / "other" / "deco.py").write_text("def double(f):\n    return lambda x: 2 * f(x)\n")
    core = lib.load()
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 4


KINDS = """
    import functools

    class C:
        @staticmethod
        def s(x):
            return x

        @classmethod
        def c(cls):
            return 1

        @property
        def p(self):
            return self.raw

        @p.setter
        def p(self, value):
            self.raw = value

        @p.deleter
        def p(self):
            self.raw = 0

        @functools.cached_property
        def cached(self):
            return 1

        def power(self, n):
            return n

        square = functools.partialmethod(power, 2)

        @functools.singledispatchmethod
        def d(self, x):
            return 1

        @d.register
        def _(self, x: str):
            return 10

    @functools.lru_cache
    def memo(x):
        return x

    @functools.singledispatch
    def single(x):
        return 1

    @single.register
    def _(x: str):
        return 10
    """


def test_static_and_class_methods(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    patchwork.apply(lib.patch("C.s", ADD_ONE, name="own.s"), lib.patch("C.c", ADD_ONE, name="own.c"))
    assert (core.C.s(1), core.C().s(1), core.C.c()) == (2, 2, 2)


def test_the_parts_of_a_property_are_patched_apart(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    item = core.C()
    item.p = 5
    patchwork.apply(lib.patch("C.p.fset", required("self.raw = value").replace("self.raw = value * 10")))
    item.p = 5
    assert item.p == 50
    patchwork.apply(lib.patch("C.p.fget", ADD_ONE, name="own.get"))
    assert item.p == 51
    patchwork.apply(lib.patch("C.p.fdel", required("self.raw = 0").replace("self.raw = 100"), name="own.del"))
    del item.p
    assert item.p == 101


def test_a_property_by_its_name_alone_is_its_getter(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    patchwork.apply(lib.patch("C.p", ADD_ONE))
    item = core.C()
    item.p = 1
    assert item.p == 2


def test_two_names_of_one_getter_are_one_function(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    original = core.C.p.fget.__code__
    patchwork.apply(
        lib.patch("C.p", parameter("k", default="100"), ADD_ONE, name="own.one"),
        lib.patch("C.p.fget", parameter("j", default="10"), at_start("self.raw += j"), name="own.two"),
    )
    item = core.C()
    item.p = 0
    assert item.p == 11
    assert core.C.p.fget.__kwdefaults__ == {"k": 100, "j": 10}
    patchwork.revert()
    assert core.C.p.fget.__code__ is original
    assert core.C.p.fget.__kwdefaults__ is None


def test_cached_property(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    patchwork.apply(lib.patch("C.cached", ADD_ONE))
    assert core.C().cached == 2


def test_a_method_behind_partialmethod(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    patchwork.apply(lib.patch("C.power", ADD_ONE))
    assert core.C().square() == 3


def test_singledispatch_keeps_its_registrations(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    patchwork.apply(lib.patch("single", ADD_ONE, name="own.f"), lib.patch("C.d", ADD_ONE, name="own.m"))
    assert (core.single(1), core.single("a")) == (2, 10)
    assert (core.C().d(1), core.C().d("a")) == (2, 10)


def test_an_lru_cache_is_cleared_at_apply_and_at_revert(lib: Library, loaded: Load) -> None:
    core = loaded(KINDS)
    assert core.memo(1) == 1
    patchwork.apply(lib.patch("memo", ADD_ONE))
    assert core.memo(1) == 2
    patchwork.revert()
    assert core.memo(1) == 1


def test_looking_a_target_up_calls_no_property(lib: Library, loaded: Load) -> None:
    core = loaded("""
        class Meta(type):
            @property
            def f(cls):
                raise RuntimeError("called")

        class Any:
            def __getattr__(self, name):
                raise RuntimeError(name)

            def __call__(self):
                return 1

        class C(metaclass=Meta):
            def f(self):
                return 1

        def g():
            return 1

        g = Any()
        """)
    patchwork.apply(lib.patch("C.f", ADD_ONE))
    assert core.C().f() == 2
    with pytest.raises(ForeignPatch, match=r"g is, or is wrapped by, a lib\.core\.Any"):
        patchwork.apply(lib.patch("g", ADD_ONE, name="own.g"))


def test_aliases_made_before_run_the_new_body(lib: Library) -> None:
    lib.write("def f(x):\n    return x\n", user='from lib.core import f as g\n\ntable = {"k": g}\n')
    user = lib.load("lib.user")
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert user.g(1) == 2
    assert user.table["k"](1) == 2
    patchwork.revert()
    assert user.g(1) == 1


def test_living_instances_and_bound_methods_run_the_new_body(lib: Library, loaded: Load) -> None:
    core = loaded("class C:\n    def f(self):\n        return 1\n\n\nclass D(C):\n    pass\n")
    item, bound = core.D(), core.C().f
    patchwork.apply(lib.patch("C.f", ADD_ONE))
    assert (item.f(), bound()) == (2, 2)


def test_the_live_one_of_several_definitions_is_chosen(lib: Library, loaded: Load) -> None:
    core = loaded("""
        try:
            import no_such_module
        except ImportError:
            def f(x):
                return x
        else:
            def f(x):
                pass
        if True:
            def g(x):
                return x
        else:
            def g(x):
                pass
        """)
    patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"), lib.patch("g", ADD_ONE, name="own.g"))
    assert (core.f(1), core.g(1)) == (2, 2)


def test_overload_stubs_are_passed_by(lib: Library, loaded: Load) -> None:
    core = loaded("""
        from typing import overload

        @overload
        def f(x: int) -> int: ...
        @overload
        def f(x: str) -> str: ...
        def f(x):
            return x
        """)
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 2


def test_a_new_parameter_shows_in_the_signature(lib: Library, loaded: Load) -> None:
    core = loaded("DEFAULT = 5\n\ndef f(x, *, a=1):\n    return x\n")
    patch = lib.patch("f", parameter("y", default="DEFAULT"), required("return x").replace("return x + y"))
    patchwork.apply(patch)
    assert core.f(1) == 6
    assert core.f(1, y=1) == 2
    assert str(inspect.signature(core.f)) == "(x, *, a=1, y=5)"
    patchwork.revert()
    assert str(inspect.signature(core.f)) == "(x, *, a=1)"
    assert core.f.__kwdefaults__ == {"a": 1}


@pytest.mark.parametrize("imported", [True, False])
def test_a_default_that_the_module_does_not_have_is_refused(lib: Library, imported: bool) -> None:
    lib.write("def f(x):\n    return x\n")
    if imported:
        lib.load()
    with pytest.raises(MissingName, match="NOWHERE"):
        patchwork.apply(lib.patch("f", parameter("y", default="NOWHERE")))


def test_a_default_that_cannot_be_evaluated_is_refused(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    return x\n")
    with pytest.raises(patchwork.InvalidPatch, match="default of parameter y cannot be evaluated: ZeroDivisionError"):
        patchwork.apply(lib.patch("f", parameter("y", default="1 / 0")))
    assert str(inspect.signature(core.f)) == "(x)"


def test_the_objects_of_existing_defaults_stay(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x, acc=[], *, k={}):\n    acc.append(x)\n    return acc\n")
    core.f(1)
    before, keyword = core.f.__defaults__[0], core.f.__kwdefaults__["k"]
    patchwork.apply(lib.patch("f", required("acc.append(x)").replace("acc.append(x * 10)"), parameter("y", default="0")))
    assert core.f(2) == [1, 20]
    assert core.f.__defaults__[0] is before
    assert core.f.__kwdefaults__["k"] is keyword


def test_defaults_and_annotations_are_not_evaluated_again(lib: Library, loaded: Load) -> None:
    core = loaded("""
        from __future__ import annotations

        evaluated = []

        class C:
            K = 3

            def f(self, x=evaluated.append("default") or K, y: Nowhere = 0) -> AlsoNowhere:
                return x

            del K
        """)
    patchwork.apply(lib.patch("C.f", ADD_ONE))
    assert core.C().f() == 4
    assert core.evaluated == ["default"]
    assert core.C.f.__annotations__ == {"y": "Nowhere", "return": "AlsoNowhere"}


def test_anchors_in_nested_functions_and_comprehensions(lib: Library, loaded: Load) -> None:
    core = loaded("""
        def f(x):
            k = 2
            def inner(y):
                return [g(z) * k for z in y]
            return inner(x)

        def g(z):
            return z
        """)
    patchwork.apply(lib.patch("f", required("g(z)").replace("(g(z) + 1)")))
    assert core.f([1, 2]) == [4, 6]


def test_generators_and_coroutines_keep_their_kind_and_running_frames_end_on_the_old_code(lib: Library, loaded: Load) -> None:
    core = loaded("""
        def gen():
            yield 1
            yield 1

        async def co():
            return 1

        async def agen():
            yield 1
        """)
    running = core.gen()
    next(running)
    edit = required("yield 1", at_least=1).replace("yield 2")
    patchwork.apply(
        lib.patch("gen", edit, name="own.gen"), lib.patch("co", ADD_ONE, name="own.co"), lib.patch("agen", edit, name="own.agen")
    )
    assert list(running) == [1]
    assert list(core.gen()) == [2, 2]
    assert asyncio.run(core.co()) == 2

    async def collect() -> list[int]:
        return [item async for item in core.agen()]

    assert asyncio.run(collect()) == [2]
    assert inspect.iscoroutinefunction(core.co)
    assert inspect.isasyncgenfunction(core.agen)


@pytest.mark.parametrize("imported", [True, False])
def test_an_edit_that_makes_another_kind_of_function_is_refused(lib: Library, imported: bool) -> None:
    lib.write("def f(x):\n    return x\n")
    if imported:
        lib.load()
    with pytest.raises(Unswappable, match="the edit makes f another kind of function"):
        patchwork.apply(lib.patch("f", required("return x").replace("yield x")))
    assert lib.load().f(1) == 1


def test_strings_over_several_lines_keep_their_value(lib: Library, loaded: Load) -> None:
    source = 'class C:\n    def f(self):\n        text = """a\n  b\n\t\n            c"""\n        return text\n'
    core = loaded(source)
    before = core.C().f()
    patchwork.apply(lib.patch("C.f", required("return text").replace("return text, 1")))
    assert core.C().f() == (before, 1)


@pytest.mark.parametrize(
    "source",
    [
        b"def f(x):\r\n    y = '''a\r\nb'''\r\n    return x\r\n",
        b"\xef\xbb\xbfdef f(x):\n\treturn x\n",
        "# coding: latin-1\n\x0cdef f(x):\n    é = 'ü'\n    return x".encode("latin-1"),
        "def f(x):\n    y = 'a\u2028b'\n    return x".encode(),
        b"def f(x):\r    return x\r",
    ],
)
def test_any_encoding_and_line_ending_is_swapped(lib: Library, source: bytes) -> None:
    core = lib.write(source).load()
    patchwork.apply(lib.patch("f", required("return x").insert_before("if x:\n    x += 1")))
    assert core.f(1) == 2
    assert "x += 1" in inspect.getsource(core.f)


def test_a_hot_function_is_recognised(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    total = 0\n    for i in range(3):\n        total += x\n    return total\n")
    for _ in range(2000):
        core.f(1)
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 4


def test_a_traced_function_is_recognised(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    y = x\n    return y\n")
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: lambda *rest: None)  # type: ignore[arg-type,return-value]
    try:
        core.f(1)
        patchwork.apply(lib.patch("f", ADD_ONE))
    finally:
        sys.settrace(before)
    assert core.f(1) == 2


# What it refuses


def test_a_function_replaced_by_another_library_is_refused_with_module_and_line(lib: Library) -> None:
    lib.write("def f(x):\n    return x\n")
    (lib.root / "other.py").write_text("from lib import core\n\n_orig = core.f\ncore.f = lambda x: _orig(x) * 2\n")
    core = lib.load()
    importlib.import_module("other")
    with pytest.raises(ForeignPatch) as caught:
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert "f was replaced or wrapped by other (<lambda>)" in str(caught.value)
    assert "other.py:4" in str(caught.value)
    assert core.f(1) == 2


@pytest.mark.parametrize(
    "wrap",
    [
        "def wrap(f):\n    return lambda x: f(x) * 2",
        "import functools\ndef wrap(f):\n    @functools.wraps(f)\n    def w(x):\n        return f(x) * 2\n    return w",
        "class wrap:\n    def __init__(self, f):\n        self.__wrapped__ = f\n"
        "    def __call__(self, x):\n        return self.__wrapped__(x) * 2",
        "import wrapt\n@wrapt.decorator\ndef wrap(f, instance, args, kwargs):\n    return f(*args) * 2",
    ],
)
def test_a_function_wrapped_by_another_library_is_refused(lib: Library, wrap: str) -> None:
    lib.write("def f(x):\n    return x\n")
    (lib.root / "other.py").write_text(f"from lib import core\n{wrap}\ncore.f = wrap(core.f)\n")
    core = lib.load()
    importlib.import_module("other")
    with pytest.raises(ForeignPatch, match=r"f (was replaced or wrapped by other|is, or is wrapped by, a )"):
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 2


def test_many_closures_over_each_other_are_searched_in_no_time(lib: Library, loaded: Load) -> None:
    names = [f"f{number}" for number in range(30)]
    inner = "\n".join(f"    def {name}():\n        return {', '.join(names)}" for name in names)
    core = loaded(f"def f():\n    return 1\n\ndef made():\n{inner}\n    return f0\n\nf = made()\n")
    with pytest.raises(ForeignPatch):
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f.__name__ == "f0"


def test_a_file_that_changed_after_the_import_is_refused(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    return x\n")
    lib.path.write_text("def f(x):\n    y = 1\n    return x\n")
    with pytest.raises(SourceMismatch, match="f does not run the code that its file holds"):
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 1


def test_code_edited_in_place_by_another_is_refused(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    return x\n\ndef g(x):\n    return 7\n")
    core.f.__code__ = core.g.__code__
    with pytest.raises(SourceMismatch):
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 7


def test_a_module_without_source_is_refused(lib: Library, tmp_path: Path) -> None:
    import py_compile

    lib.write("def f(x):\n    return x\n")
    py_compile.compile(str(lib.path), cfile=str(lib.path.with_suffix(".pyc")), doraise=True)
    lib.path.unlink()
    importlib.invalidate_caches()
    patch = lib.patch("f", ADD_ONE)
    for _ in range(2):  # before the import and after
        with pytest.raises(SourceUnavailable, match=r"lib\.core has no Python source"):
            patchwork.apply(patch)
        assert lib.load().f(1) == 1


def test_builtin_and_c_functions_are_refused() -> None:
    for target, kind in [("math:sqrt", SourceUnavailable), ("json.decoder:c_scanstring", TargetMissing)]:
        with pytest.raises(kind):
            patchwork.apply(patchwork.Patch(name="own.c", target=target, edits=[at_start("x = 1")]))


def test_a_function_made_by_exec_a_lambda_and_a_generated_method_are_refused(lib: Library, loaded: Load) -> None:
    loaded("""
        from dataclasses import dataclass

        exec("def e(x):\\n    return x")
        la = lambda x: x

        @dataclass
        class D:
            x: int
        """)
    for name in ("e", "la", "D.__init__"):
        with pytest.raises(TargetMissing, match="defines no function"):
            patchwork.apply(lib.patch(name, at_start("x = 1")))


def test_a_module_made_at_run_time_is_refused() -> None:
    sys.modules["lib"] = types.ModuleType("lib")
    exec("def f(x):\n    return x", vars(sys.modules["lib"]))
    with pytest.raises(SourceUnavailable, match="lib was not imported from a file"):
        patchwork.apply(patchwork.Patch(name="own.c", target="lib:f", edits=[at_start("x = 1")]))


def test_a_module_in_a_zip_file_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped/__init__.py", "")
        file.writestr("zipped/core.py", "def f(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(archive))
    patch = patchwork.Patch(name="own.zip", target="zipped.core:f", edits=[ADD_ONE])
    assert patchwork.apply(patch)["own.zip"].state == "pending"
    core = importlib.import_module("zipped.core")
    assert core.f(1) == 2
    patchwork.revert()
    assert core.f(1) == 1
    assert patchwork.apply(patch)["own.zip"].state == "applied"
    assert core.f(1) == 2


@pytest.mark.parametrize("imported", [True, False])
def test_a_name_that_the_module_lacks_is_refused_at_apply(lib: Library, imported: bool) -> None:
    lib.write("import os\n\ndef g():\n    local = 1\n    return local\n\ndef f(x):\n    return x\n")
    if imported:
        lib.load()
    for name in ("nowhere", "local"):
        with pytest.raises(MissingName, match=f"uses {name}, which the module does not define"):
            patchwork.apply(lib.patch("f", required("return x").replace(f"return [lambda: {name}(x) for _ in x]")))


@pytest.mark.parametrize("imported", [True, False])
def test_names_that_the_module_or_python_has_are_accepted(lib: Library, imported: bool) -> None:
    lib.write("""
        import os.path as p, sys
        from math import *
        total: int = 0
        for i in range(2):
            pass
        def f(x):
            return x
        """)
    if imported:
        lib.load()
    patchwork.apply(lib.patch("f", required("return x").replace("return len([p, sys, total, i, sqrt, __name__, f, x])")))
    assert lib.load().f(1) == 8


@pytest.mark.parametrize("source", ["def g():\n    global made\n    made = 1\ng()\n", "globals()['made'] = 1\n"])
def test_names_bound_in_other_ways_are_accepted_before_the_import(lib: Library, source: str) -> None:
    lib.write(source + "def f(x):\n    return x\n")
    patchwork.apply(lib.patch("f", required("return x").replace("return made")))
    assert lib.load().f(5) == 1


def test_a_name_that_the_old_code_loaded_already_is_not_asked_for(lib: Library) -> None:
    lib.write("def f(x):\n    if x is None:\n        return undefined\n    return x\n")
    patchwork.apply(lib.patch("f", required("return x").replace("return [undefined] if x == 2 else x + 1")))
    assert lib.load().f(1) == 2


# What people see of it


def test_source_and_traceback_show_the_lines_that_run(lib: Library, loaded: Load) -> None:
    core = loaded("x = 1\n\ndef f(x):\n    return x\n\ndef g():\n    return 1\n")
    patchwork.apply(lib.patch("f", required("return x").insert_before('raise ValueError("patched")')))
    for _ in range(2):
        assert inspect.getsource(core.f) == 'def f(x):\n    raise ValueError("patched")\n    return x\n'
        try:
            core.f(1)
        except ValueError as error:
            text = "".join(traceback.format_exception(error))
        assert '    raise ValueError("patched")\n' in text
        linecache.clearcache()
    assert inspect.getsource(core.g) == "def g():\n    return 1\n"
    patchwork.revert()
    assert inspect.getsource(core.f) == "def f(x):\n    return x\n"


def test_lines_are_shown_where_no_file_can_be_written(
    lib: Library, loaded: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "file" / "below"))
    core = loaded("def f(x):\n    return x\n")
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f(1) == 2
    linecache.checkcache()
    assert inspect.getsource(core.f) == "def f(x):\n    return x + 1\n"


def test_the_text_is_kept_under_a_name_that_follows_from_its_content(lib: Library, loaded: Load, tmp_path: Path) -> None:
    core = loaded("def f(x):\n    return x\n")
    patch = lib.patch("f", ADD_ONE)
    names = []
    for _ in range(2):
        patchwork.apply(patch)
        names.append(core.f.__code__.co_filename)
        patchwork.revert()
    assert names[0] == names[1]
    assert names[0].startswith(str(tmp_path / "cache"))
    Path(names[0]).write_bytes(b"garbage")
    patchwork.apply(patch)
    assert Path(names[0]).read_text() == "def f(x):\n    return x + 1\n"


def test_a_patched_function_and_an_object_of_its_class_can_be_pickled(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    return x\n\nclass C:\n    def m(self):\n        return 1\n")
    patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"), lib.patch("C.m", ADD_ONE, name="own.m"))
    assert pickle.loads(pickle.dumps(core.f)) is core.f
    assert pickle.loads(pickle.dumps(core.C())).m() == 2


def test_partial_objects_made_before_run_the_new_body(lib: Library, loaded: Load) -> None:
    core = loaded("def f(x):\n    return x\n")
    bound = functools.partial(core.f, 1)
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert bound() == 2


def test_the_garbage_collector_is_left_as_it_was(lib: Library, loaded: Load) -> None:
    loaded("def f(x):\n    return x\n")
    assert gc.isenabled()
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert gc.isenabled()
    with pytest.raises(TargetMissing):
        patchwork.apply(lib.patch("g", ADD_ONE, name="own.g"))
    assert gc.isenabled()
    gc.disable()
    try:
        patchwork.revert()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_new_syntax_beside_the_edit(lib: Library, loaded: Load) -> None:
    source = """
        def f(x):
            match x:
                case {"a": [1, *rest], **more} if rest:
                    y = rest
                case _:
                    y = x
            return y
        """
    if sys.version_info >= (3, 12):
        source += """
        type Alias[T] = list[T]

        class C[T]:
            def f[U](self, x: U) -> U:
                y = f"{f"{x}"}"
                try:
                    pass
                except* ValueError:
                    pass
                return x
        """
    core = loaded(textwrap.dedent(source))
    patchwork.apply(lib.patch("f", required("return y").replace("return y + 1")))
    assert core.f(1) == 2
    if sys.version_info >= (3, 12):
        patchwork.apply(lib.patch("C.f", parameter("k", default="5"), required("return x").replace("return x + k"), name="own.c"))
        assert core.C().f(1) == 6


def test_code_compiled_without_asserts_is_recognised(lib: Library) -> None:
    """The running interpreter's optimisation decides what the source compiles to."""
    lib.write('def f(x):\n    """Doc."""\n    assert x\n    return x\n')
    script = f"""
        import sys
        sys.path.insert(0, {str(lib.root)!r})
        import lib.core, patchwork
        edit = patchwork.required("return x").replace("return x + 1")
        patchwork.apply(patchwork.Patch(name="own.p", target="lib.core:f", edits=[edit]))
        assert_off = lib.core.f(0)
        print(assert_off)
        """
    done = subprocess.run([sys.executable, "-OO", "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")
