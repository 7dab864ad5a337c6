"""What a swap keeps of a living function, beyond the rows of test_hard_cases.py: everything that is not the edited code."""

from __future__ import annotations

import gc
import importlib
import inspect
import linecache
import os
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
    Patch,
    SourceMismatch,
    SourceUnavailable,
    TargetMissing,
    Unswappable,
    at_start,
    parameter,
    required,
)
from patchwork.engine.live import swap

if TYPE_CHECKING:
    from conftest import Library

Load = Callable[[str], types.ModuleType]
ADD_ONE = required("return $X").replace("return $X + 1")


@pytest.mark.parametrize("imported", [True, False])
def test_a_replacement_that_brings_super_where_it_has_no_instance_is_refused(lib: Library, imported: bool) -> None:
    lib.write("class C:\n    def f(*args):\n        return 1\n")
    if imported:
        lib.load()
    with pytest.raises(Unswappable, match=r"the edit makes C\.f use __class__ of an enclosing scope"):
        patchwork.apply(lib.patch("C.f", required("return 1").replace("return super().f()")))
    assert lib.load().C().f() == 1


def test_a_replacement_that_brings_super_in_every_place_of_a_method(lib: Library, loaded: Load) -> None:
    core = loaded("""
        class A:
            def f(self, x=0):
                return [type(self).__name__, x]

        class B(A):
            def f(self, x=0):
                "Doc."
                return 10

        class D(B):
            pass
        """)
    new = """
        def inner(this, y=super().f(1)):
            return y + super().f(2)

        class Local(A):
            def f(self):
                return super().f(4)

        return [super().f(super().f(5)), inner(D()), Local().f(), super(B, self).f(7)]
        """
    before = core.B.f
    patchwork.apply(lib.patch("B.f", required("return 10").replace(textwrap.dedent(new))))
    assert core.B().f() == [["B", ["B", 5]], ["B", 1, "D", 2], ["Local", 4], ["B", 7]]
    assert core.B.f is before
    assert core.B.f.__doc__ == "Doc."
    assert "super().f(4)" in inspect.getsource(core.B.f)
    patchwork.revert()
    assert core.B().f() == 10


MAKER = """
    def make(k, other=None):
        class Between:
            pass
        def plain(x):
            return x + k
        return plain, lambda x: x * k

    before = make(10)

    def g():
        return 1
    """


def test_functions_made_before_are_patched_and_reverted_with_their_maker(lib: Library, loaded: Load) -> None:
    core = loaded(MAKER)
    original = core.before[0].__code__
    patchwork.apply(lib.patch("make", required("x + k").replace("x"), required("x * k").replace("-x")))
    since = core.make(10)
    assert [f(2) for f in (*core.before, *since)] == [2, -2, 2, -2]
    patchwork.revert()
    assert [f(2) for f in (*core.before, *since)] == [12, 20, 12, 20]
    assert core.before[0].__code__ is original


def test_functions_made_before_that_cannot_take_the_new_code_are_counted(lib: Library, loaded: Load) -> None:
    core = loaded(MAKER)
    outcome = patchwork.apply(lib.patch("make", required("x + k").replace("x + k + other")))["own.patch"]
    assert outcome.detail == "1 function(s) that it made before keep their code"
    assert (core.before[0](1), core.make(10, 5)[0](1)) == (11, 16)


def test_functions_made_before_are_put_back_where_a_later_swap_fails(
    lib: Library, loaded: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = loaded(MAKER)
    commit = swap.Swap.commit

    def commit_or_fail(self: swap.Swap) -> None:
        if self.qualname == "g":
            raise ValueError("refused")
        commit(self)

    monkeypatch.setattr(swap.Swap, "commit", commit_or_fail)
    one = lib.patch("make", required("x + k").replace("x"), name="own.make")
    two = lib.patch("g", required("return 1").replace("return 2"), name="own.g")
    with pytest.raises(Unswappable):
        patchwork.apply(one, two)
    assert (core.before[0](1), core.make(1)[0](1)) == (11, 2)
    patchwork.apply(one)
    with pytest.raises(Unswappable):
        patchwork.apply(two)
    assert (core.before[0](1), core.make(1)[0](1)) == (1, 1)


def test_functions_made_before_are_not_searched_for_by_an_edit_beside_them(
    lib: Library, loaded: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search walks all objects of the process."""
    core = loaded(MAKER)
    monkeypatch.setattr(gc, "get_referrers", lambda *codes: pytest.fail("searched"))
    patchwork.apply(lib.patch("make", at_start("k += 1")))
    assert (core.before[0](1), core.make(10)[0](1)) == (11, 12)


def test_an_enclosing_variable_made_a_local_is_refused(lib: Library) -> None:
    source = "class C:\n    def f(self):\n        return super().__repr__()\n"
    lib.write(source)
    patch = lib.patch("C.f", required("return super().__repr__()").replace("__class__ = 5\nreturn __class__"))
    for _ in range(2):  # before the import and after
        with pytest.raises(Unswappable, match=r"makes __class__, which C\.f took from an enclosing scope, a name of its own"):
            patchwork.apply(patch)
        lib.load()


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

    @register
    @double
    @unnamed
    def f(x):
        return x
    """


def test_decorators_run_once_and_stay_active(lib: Library, loaded: Load) -> None:
    core = loaded(DECORATED)
    outer = core.f
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.f is outer
    assert core.f(1) == -4
    assert core.calls == ["inner"]


REGISTERED = """
    kept = []

    @kept.append
    def f(x):
        return x
    """


def test_a_function_that_a_decorator_put_elsewhere_is_lost_with_a_reload_and_found_again(lib: Library, loaded: Load) -> None:
    core = loaded(REGISTERED)
    patch = lib.patch("f", ADD_ONE)
    first = patchwork.apply(patch)
    assert patchwork.apply(patch) == first
    assert core.kept[0](1) == 2
    importlib.reload(core)
    assert patchwork.status()["own.patch"].state == "failed"
    patchwork.apply(patch)
    assert core.kept[0](1) == 2
    patchwork.revert()
    assert core.kept[0](1) == 1


@pytest.mark.parametrize("instead", ["def g(x):\n    return x\nf = g\n", "f = lambda x: x\n", "from os import getenv as f\n"])
def test_a_function_that_is_kept_elsewhere_and_replaced_here_is_refused(lib: Library, loaded: Load, instead: str) -> None:
    core = loaded(textwrap.dedent(REGISTERED) + instead)
    with pytest.raises(ForeignPatch):
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert core.kept[0](1) == 1


def test_several_functions_of_one_definition_that_are_kept_elsewhere_are_refused(lib: Library, loaded: Load) -> None:
    core = loaded("kept = []\nfor i in range(2):\n    @kept.append\n    def f(x):\n        return x\n")
    with pytest.raises(ForeignPatch):
        patchwork.apply(lib.patch("f", ADD_ONE))
    assert [f(1) for f in core.kept] == [1, 1]


KINDS = """
    import functools

    class C:
        @property
        def p(self):
            return self.raw

        @p.setter
        def p(self, value):
            self.raw = value

    @functools.lru_cache
    def memo(x):
        return x
    """


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


@pytest.mark.parametrize("imported", [True, False])
def test_an_edit_that_makes_another_kind_of_function_is_refused(lib: Library, imported: bool) -> None:
    lib.write("def f(x):\n    return x\n")
    if imported:
        lib.load()
    with pytest.raises(Unswappable, match="the edit makes f another kind of function"):
        patchwork.apply(lib.patch("f", required("return x").replace("yield x")))
    assert lib.load().f(1) == 1


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


MAKES_ITS_NAMES = {
    "global made\nmade = 1\nmade += 1": True,
    "global json\nimport json\njson.dumps(1)": True,
    "class C:\n    made = 1\n    twice = made + made": True,
    "def g():\n    global made\n    made = 1\ng()\nlen([made])": True,
    "class C:\n    made = 1\ndef g():\n    return made": False,
    "global made\nlen([made])": False,
}


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize(("code", "accepted"), MAKES_ITS_NAMES.items())
def test_a_name_that_the_new_code_makes_itself_is_none_that_the_module_lacks(
    lib: Library, imported: bool, code: str, accepted: bool
) -> None:
    lib.write("def f(x):\n    return x\n")
    if imported:
        lib.load()
    patch = lib.patch("f", at_start(code))
    if accepted:
        patchwork.apply(patch)
        assert lib.load().f(5) == 5
    else:
        with pytest.raises(MissingName, match="uses made"):
            patchwork.apply(patch)


def test_a_module_that_python_holds_frozen_is_read_from_its_file() -> None:
    before = os.get_exec_path()
    patchwork.apply(Patch("own.patch", "os:get_exec_path", [at_start("return ['patched']")]))
    assert os.get_exec_path() == ["patched"]
    patchwork.revert()
    assert os.get_exec_path() == before


def test_a_frozen_module_without_a_file_has_no_source() -> None:
    with pytest.raises(SourceUnavailable, match="has no Python source"):
        patchwork.apply(Patch("own.patch", "importlib._bootstrap:_wrap", [at_start("return")]))


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


def test_super_in_a_function_of_no_class_is_refused_before_and_after_the_import(lib: Library) -> None:
    lib.write("def f(x):\n    return x\n")
    patch = lib.patch("f", required("return x").replace("return super().f(x)"))
    for load in (False, True):
        if load:
            lib.load()
        with pytest.raises(Unswappable, match="in no class"):
            patchwork.apply(patch)
    named = lib.patch("f", required("return x").replace("return super(int, x).__abs__()"))
    patchwork.apply(named)
    with pytest.raises(TypeError, match=r"super\(type, obj\): obj"):
        lib.load().f("")


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING", "False"])
def test_a_name_that_only_type_checkers_see_is_missing_before_the_import_too(lib: Library, test: str) -> None:
    head = f"import typing\nfrom typing import TYPE_CHECKING\nif {test}:\n    from collections import OrderedDict, deque\n"
    lib.write(head + "else:\n    deque = None\ndef f(x):\n    return x\n")
    with pytest.raises(MissingName, match="OrderedDict"):
        patchwork.apply(lib.patch("f", at_start("OrderedDict")))
    assert patchwork.apply(lib.patch("f", at_start("deque")))["own.patch"].state == "pending"
    assert lib.load().f(1) == 1
