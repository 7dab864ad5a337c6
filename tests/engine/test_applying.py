"""apply(), revert(), status(): all or nothing, before the import and after it, once and again."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import linecache
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import wrapt

import patchwork
from patchwork import (
    AnchorMissing,
    InvalidPatch,
    MissingName,
    PatchConflict,
    PatchError,
    Report,
    SourceMismatch,
    TargetMissing,
    Unswappable,
    optional,
    required,
)
from patchwork.engine import transaction
from patchwork.engine.live import import_hooks, record, swap

if TYPE_CHECKING:
    from conftest import Library

Load = Callable[[str], types.ModuleType]
ADD_ONE = required("return $X").replace("return $X + 1")
LOST = required("return gone").replace("return 1")
HANGS = 300  # seconds: a deadlock takes them, a loaded machine does not
CORE = "def f(x):\n    return x\n\ndef g(x):\n    return x\n"


def states(report: Report) -> dict[str, str]:
    return {outcome.patch: outcome.state for outcome in report}


# Before and after the import


def test_a_module_that_is_not_imported_is_previewed_and_patched_with_its_import(lib: Library) -> None:
    lib.write(CORE)
    report = patchwork.apply(lib.patch("f", ADD_ONE))
    assert "lib" not in sys.modules
    assert "lib.core" not in sys.modules
    outcome = report["own.patch"]
    assert (outcome.state, outcome.edits) == ("pending", ("replace at line 2",))
    assert "swapped when the module is imported" in outcome.detail
    core = lib.load()
    assert core.f(1) == 2
    assert patchwork.status()["own.patch"].state == "applied"
    assert patchwork.status()["own.patch"].detail == ""


def test_a_package_whose_search_path_holds_path_objects_is_previewed(lib: Library) -> None:
    lib.write(CORE).load("lib")
    spec = sys.modules["lib"].__spec__
    assert spec is not None
    spec.submodule_search_locations = [lib.root / "lib"]  # type: ignore[list-item]
    assert patchwork.apply(lib.patch("f", ADD_ONE))["own.patch"].state == "pending"


def test_a_module_that_is_imported_is_patched_at_once(lib: Library) -> None:
    core = lib.write(CORE).load()
    assert patchwork.apply(lib.patch("f", ADD_ONE))["own.patch"].state == "applied"
    assert core.f(1) == 2
    assert core.g(1) == 1


def test_before_and_after_the_import_give_the_same_code(lib: Library) -> None:
    core = lib.write(CORE).load()
    patch = lib.patch("f", ADD_ONE)
    patchwork.apply(patch)
    after = core.f.__code__
    patchwork.revert()
    for name in ("lib.core", "lib"):
        del sys.modules[name]
    patchwork.apply(patch)
    before = lib.load().f.__code__
    assert before == after
    assert before.co_filename == after.co_filename


def test_drift_shows_at_apply_before_the_import(lib: Library) -> None:
    lib.write(CORE)
    with pytest.raises(AnchorMissing, match="required anchor not found: return gone"):
        patchwork.apply(lib.patch("f", LOST))
    assert "lib.core" not in sys.modules
    assert len(patchwork.status()) == 0
    assert lib.load().f(1) == 1


def test_a_module_that_the_package_does_not_have_is_refused(lib: Library) -> None:
    lib.write(CORE)
    with pytest.raises(TargetMissing, match=r"there is no module lib\.moved") as caught:
        patchwork.apply(lib.patch("f", ADD_ONE, module="lib.moved"))
    assert caught.value.patch == "own.patch"
    with pytest.raises(TargetMissing, match=r"there is no module lib\.core\.deeper"):
        patchwork.apply(lib.patch("f", ADD_ONE, module="lib.core.deeper"))


def test_a_top_level_module(lib: Library) -> None:
    (lib.root / "other.py").write_text("def f(x):\n    return x\n")
    patch = lib.patch("f", ADD_ONE, module="other")
    assert states(patchwork.apply(patch)) == states(patchwork.apply(patch)) == {"own.patch": "pending"}
    other = importlib.import_module("other")
    assert other.f(1) == 2
    assert states(patchwork.apply(patch)) == {"own.patch": "applied"}


def test_a_package_itself(lib: Library) -> None:
    lib.write(CORE)
    (lib.root / "lib" / "__init__.py").write_text("from .core import f\n\ndef h(x):\n    return f(x)\n")
    importlib.invalidate_caches()
    patchwork.apply(lib.patch("h", ADD_ONE, module="lib", name="own.h"), lib.patch("f", ADD_ONE, name="own.f"))
    assert lib.load("lib").h(1) == 3


def test_a_second_apply_before_the_import_imports_no_parent(lib: Library) -> None:
    lib.write(CORE)
    patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"))
    patchwork.apply(lib.patch("g", ADD_ONE, name="own.g"))
    assert "lib" not in sys.modules
    core = lib.load()
    assert (core.f(1), core.g(1)) == (2, 2)


def test_from_import_and_import_of_the_parent_are_patched_too(lib: Library) -> None:
    lib.write(CORE, user="from lib.core import f\n")
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert lib.load("lib.user").f(1) == 2


def test_a_swap_that_fails_at_the_import_fails_each_further_import(lib: Library) -> None:
    lib.write("def f(x):\n    return x\n\nf = f if DEFINED else None\n".replace("f if DEFINED else None", "len"))
    patchwork.apply(lib.patch("f", ADD_ONE))
    for _ in range(3):
        with pytest.raises(PatchError, match=r"own\.patch: f is, or is wrapped by, a builtins\.builtin_function_or_method"):
            importlib.import_module("lib.core")
        assert "lib.core" not in sys.modules
    for _ in range(2):
        with pytest.raises(PatchError, match=r"own\.patch"):
            exec("from lib import core", {})
    patchwork.revert()
    assert lib.load().f("abc") == 3


def test_a_swap_that_fails_at_the_import_works_once_its_cause_is_gone(lib: Library) -> None:
    lib.write(CORE)
    patchwork.apply(lib.patch("f", ADD_ONE))
    lib.write("def other():\n    pass\n")
    with pytest.raises(PatchError, match="the module defines no function f"):
        lib.load()
    lib.write(CORE + "\n\nmore = 1\n")
    assert lib.load().f(1) == 2


def test_an_import_that_fails_by_itself_fails_with_its_own_error(lib: Library) -> None:
    lib.write("def f(x):\n    return x\n\nraise KeyError('own')\n")
    patchwork.apply(lib.patch("f", ADD_ONE))
    with pytest.raises(KeyError, match="own"):
        lib.load()
    lib.write(CORE)
    assert lib.load().f(1) == 2


def test_patch_errors_are_none_that_importers_swallow() -> None:
    for kind in (PatchError, AnchorMissing, MissingName, Unswappable):
        assert not issubclass(kind, ImportError | AttributeError | RuntimeError | OSError | LookupError)


# Once and again


def test_apply_twice_and_revert_twice(lib: Library) -> None:
    lib.write(CORE + "\n\ndef native():\n    return h(1)\n", late=CORE)
    core = lib.load()
    original = core.f.__code__
    patches = [
        lib.patch("f", ADD_ONE, optional("absent()").remove(), name="own.f"),
        lib.patch("native", required("return g(1)").replace("return h(1)"), name="own.native"),
        lib.patch("f", ADD_ONE, name="own.late", module="lib.late"),
        lib.patch("f", ADD_ONE, name="own.absent", versions={"no-such-package": ">=1"}),
    ]
    first = patchwork.apply(*patches)
    patched = core.f.__code__
    second = patchwork.apply(*patches)
    assert first == second == patchwork.status()
    assert states(first) == {"own.f": "applied", "own.native": "native", "own.late": "pending", "own.absent": "absent"}
    assert first["own.f"].detail == "optional anchor not found: absent()"
    assert core.f.__code__ is patched
    assert core.f(1) == 2
    assert len(patchwork.revert()) == len(patchwork.revert()) == 0
    assert core.f.__code__ is original


def test_revert_restores_the_same_objects(lib: Library) -> None:
    core = lib.write("def f(x, *, k=1):\n    return x\n").load()
    function, code, defaults = core.f, core.f.__code__, core.f.__kwdefaults__
    patchwork.apply(lib.patch("f", patchwork.parameter("y", default="0"), ADD_ONE))
    assert core.f.__code__ is not code
    patchwork.revert()
    assert core.f is function
    assert core.f.__code__ is code
    assert core.f.__kwdefaults__ == defaults
    assert record.originals == {}


def test_revert_of_one_of_two_patches_on_a_function(lib: Library) -> None:
    core = lib.write("def f(x):\n    y = x\n    return y\n").load()
    one = lib.patch("f", required("y = x").replace("y = x * 10"), name="own.one")
    two = lib.patch("f", ADD_ONE, name="own.two")
    patchwork.apply(one, two)
    assert core.f(1) == 11
    assert states(patchwork.revert("own.one")) == {"own.two": "applied"}
    assert core.f(1) == 2
    assert len(patchwork.revert(two)) == 0
    assert core.f(1) == 1


def test_revert_before_the_import(lib: Library) -> None:
    lib.write(CORE)
    one, two = lib.patch("f", ADD_ONE, name="own.one"), lib.patch("g", ADD_ONE, name="own.two")
    patchwork.apply(one, two)
    assert states(patchwork.revert("own.one")) == {"own.two": "pending"}
    core = lib.load()
    assert (core.f(1), core.g(1)) == (1, 2)


def test_a_second_apply_adds_to_the_first(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"))
    function = core.f.__code__
    report = patchwork.apply(lib.patch("g", ADD_ONE, name="own.g"))
    assert (core.f(1), core.g(1)) == (2, 2)
    assert states(report) == {"own.g": "applied"}
    assert states(patchwork.status()) == {"own.f": "applied", "own.g": "applied"}
    assert core.f.__code__.co_code == function.co_code


def test_a_second_apply_on_the_same_function_starts_from_the_pristine_source(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE, name="own.one"))
    with pytest.raises(PatchConflict, match=r"own\.one and own\.two change the same code"):
        patchwork.apply(lib.patch("f", required("return x").replace("return 0"), name="own.two"))
    assert core.f(1) == 2
    assert states(patchwork.status()) == {"own.one": "applied"}


def test_leaving_out_what_is_in_force_says_that_it_is(lib: Library) -> None:
    core = lib.write(CORE).load()
    patch = lib.patch("f", ADD_ONE)
    patchwork.apply(patch)
    outcome = patchwork.apply(patch, exclude="own.patch")["own.patch"]
    assert (outcome.state, core.f(1)) == ("applied", 2)
    assert "left out by exclude=, but in force since an earlier apply(); revert() takes it out" in outcome.detail


def test_another_patch_of_the_same_name_is_refused(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE))
    with pytest.raises(InvalidPatch, match="two different patches have this name"):
        patchwork.apply(lib.patch("g", ADD_ONE))
    assert core.g(1) == 1


def test_a_reload_is_reported_as_lost_and_patched_again_by_apply(lib: Library) -> None:
    core = lib.write(CORE).load()
    patch = lib.patch("f", ADD_ONE)
    patchwork.apply(patch)
    importlib.reload(core)
    assert core.f(1) == 1
    outcome = patchwork.status()["own.patch"]
    assert outcome.state == "failed"
    assert "lost: its module was loaded again or its function replaced; apply() patches it again" in outcome.detail
    assert states(patchwork.apply(patch)) == states(patchwork.status()) == {"own.patch": "applied"}
    assert core.f(1) == 2
    patchwork.revert()
    assert core.f(1) == 1


def test_a_module_imported_anew_is_reported_as_lost_and_patched_again(lib: Library) -> None:
    old = lib.write(CORE).load()
    patch = lib.patch("f", ADD_ONE)
    patchwork.apply(patch)
    del sys.modules["lib.core"]
    core = lib.load()
    assert core is not old
    assert states(patchwork.status()) == {"own.patch": "failed"}
    patchwork.apply(patch)
    assert core.f(1) == 2


def test_code_taken_out_by_another_is_reported_as_lost(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE))
    core.f = core.g
    assert states(patchwork.status()) == {"own.patch": "failed"}


# All or nothing


def picture(module: types.ModuleType) -> dict[str, object]:
    return {
        name: (item, item.__code__, item.__kwdefaults__)
        for name, item in vars(module).items()
        if isinstance(item, types.FunctionType)
    }


def test_where_one_of_three_fails_nothing_is_changed(lib: Library) -> None:
    lib.write(CORE, late=CORE)
    core = lib.load()
    before, lines, hooks = picture(core), dict(linecache.cache), str(wrapt.importer._post_import_hooks)
    patches = [
        lib.patch("f", ADD_ONE, name="own.f"),
        lib.patch("f", ADD_ONE, name="own.late", module="lib.late"),
        lib.patch("g", LOST, name="own.g"),
    ]
    with pytest.raises(AnchorMissing) as caught:
        patchwork.apply(*patches)
    assert caught.value.patch == "own.g"
    assert picture(core) == before
    assert dict(linecache.cache) == lines
    assert str(wrapt.importer._post_import_hooks) == hooks
    assert len(patchwork.status()) == 0
    assert lib.load("lib.late").f(1) == 1


def test_a_swap_that_python_refuses_puts_back_those_before_it(lib: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    core = lib.write(CORE).load()
    before = picture(core)
    commit = swap.Swap.commit

    def refuse_g(self: swap.Swap) -> None:
        if self.qualname == "g":
            raise ValueError("g() requires a code object with 1 free vars, not 0")
        commit(self)

    monkeypatch.setattr(swap.Swap, "commit", refuse_g)
    with pytest.raises(Unswappable, match="Python refuses the new code: g"):
        patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"), lib.patch("g", ADD_ONE, name="own.g"))
    assert picture(core) == before
    assert record.originals == {}
    assert len(patchwork.status()) == 0


def test_what_was_in_force_stays_in_force_when_a_later_apply_fails(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"))
    before, report = picture(core), patchwork.status()
    with pytest.raises(AnchorMissing):
        patchwork.apply(lib.patch("g", LOST, name="own.g"))
    assert picture(core) == before
    assert patchwork.status() == report


def test_without_strict_the_failed_set_is_left_out_and_the_others_applied(lib: Library) -> None:
    lib.write(CORE, more=CORE)
    core, more = lib.load(), lib.load("lib.more")
    patches = [
        lib.patch("f", ADD_ONE, name="one.a"),
        lib.patch("g", LOST, name="one.b"),
        lib.patch("f", ADD_ONE, name="two.a", module="lib.more"),
        lib.patch("g", ADD_ONE, name="three"),
    ]
    report = patchwork.apply(*patches, strict=False)
    assert states(report) == {"one.a": "failed", "one.b": "failed", "two.a": "applied", "three": "applied"}
    assert not report.ok
    assert report["one.a"].detail == "left out, since one.b of the same set failed"
    assert isinstance(report["one.b"].error, AnchorMissing)
    assert (core.f(1), core.g(1), more.f(1)) == (1, 2, 2)


def test_without_strict_a_conflict_with_what_is_in_force_leaves_the_new_one_out(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE, name="old.f"))
    report = patchwork.apply(lib.patch("f", required("return x").replace("return 0"), name="new.f"), strict=False)
    assert states(report) == {"new.f": "failed"}
    assert core.f(1) == 2
    assert states(patchwork.status()) == {"old.f": "applied", "new.f": "failed"}


def test_without_strict_what_is_in_force_stays_although_its_set_fails(lib: Library) -> None:
    core = lib.write(CORE).load()
    old = lib.patch("f", ADD_ONE, name="own.f")
    patchwork.apply(old)
    report = patchwork.apply(old, lib.patch("g", LOST, name="own.g"), strict=False)
    assert states(report) == {"own.f": "applied", "own.g": "failed"}
    assert core.f(1) == 2


def test_without_strict_a_module_that_cannot_be_read_is_left_out(lib: Library) -> None:
    lib.write(CORE, broken="def f(x):\n    return (\n")
    core = lib.load()
    report = patchwork.apply(
        lib.patch("f", ADD_ONE, name="one.a"), lib.patch("f", ADD_ONE, name="two.a", module="lib.broken"), strict=False
    )
    assert states(report) == {"one.a": "applied", "two.a": "failed"}
    assert core.f(1) == 2


def test_two_patches_of_which_each_depends_on_the_pristine_source(lib: Library) -> None:
    core = lib.write("def f(x):\n    y = x\n    return y\n").load()
    patchwork.apply(
        lib.patch("f", required("y = x").replace("y = x * 10"), name="own.one"), lib.patch("f", ADD_ONE, name="own.two")
    )
    assert core.f(1) == 11


def test_a_module_with_one_function_is_not_taken_for_a_method_of_that_name(lib: Library) -> None:
    lib.write("def f(x):\n    return x\n")
    for _ in range(2):
        with pytest.raises(TargetMissing, match=r"the module defines no function C\.f"):
            patchwork.apply(lib.patch("C.f", ADD_ONE))
        lib.load()


def test_mismatching_files_are_told_before_anything_is_reverted(lib: Library) -> None:
    core = lib.write(CORE).load()
    one, two = lib.patch("f", ADD_ONE, name="own.one"), lib.patch("g", ADD_ONE, name="own.two")
    patchwork.apply(one, two)
    lib.path.write_text("x = 1\n" + CORE)
    with pytest.raises(SourceMismatch):
        patchwork.revert("own.one")
    assert (core.f(1), core.g(1)) == (2, 2)
    patchwork.revert()
    assert (core.f(1), core.g(1)) == (1, 1)


# Threads


def in_threads(*actions: Callable[[], object]) -> None:
    ends: list[object] = []

    def run(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            ends.append(error)
        else:
            ends.append("well")

    threads = [threading.Thread(target=run, args=(action,), daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert ends == ["well"] * len(actions)


SLOW = CORE + "\nimport time\nfor _ in range(20):\n    time.sleep(0.01)\n"


def test_apply_waits_for_an_import_that_another_thread_has_begun(lib: Library) -> None:
    lib.write(SLOW)
    importer = threading.Thread(target=lib.load, daemon=True)
    importer.start()
    while "lib.core" not in sys.modules:
        time.sleep(0.001)
    assert states(patchwork.apply(lib.patch("f", ADD_ONE))) == {"own.patch": "applied"}
    importer.join(HANGS)
    assert lib.load().f(1) == 2


def test_two_threads_import_while_a_third_applies(lib: Library) -> None:
    lib.write(SLOW, one=SLOW, two=SLOW)
    modules = ("core", "one", "two")
    patches = [lib.patch("f", ADD_ONE, name=f"own.{name}", module=f"lib.{name}") for name in modules]
    in_threads(
        lambda: [lib.load(f"lib.{name}") for name in modules],
        lambda: [lib.load(f"lib.{name}") for name in reversed(modules)],
        lambda: patchwork.apply(*patches),
    )
    assert set(states(patchwork.status()).values()) == {"applied"}
    assert [lib.load(f"lib.{name}").f(1) for name in modules] == [2, 2, 2]


def test_an_import_that_ends_while_a_second_apply_plans(lib: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import's hook waits for the plan, and the plan must not wait for the import."""
    lib.write(CORE, late=CORE)
    lib.load()
    late = lib.patch("f", ADD_ONE, name="own.late", module="lib.late")
    patchwork.apply(late)
    prepare = transaction.prepare

    def prepare_slowly(*arguments: object) -> object:
        importer.start()
        while not hasattr(sys.modules.get("lib.late"), "f"):
            time.sleep(0.001)
        time.sleep(0.2)  # by now the hook waits for the lock that this thread holds
        return prepare(*arguments)  # type: ignore[arg-type]

    importer = threading.Thread(target=lib.load, args=("lib.late",), daemon=True)
    monkeypatch.setattr(transaction, "prepare", prepare_slowly)
    in_threads(lambda: patchwork.apply(lib.patch("f", ADD_ONE, name="own.f"), late))
    importer.join(HANGS)
    assert not importer.is_alive()
    assert states(patchwork.status()) == {"own.late": "applied", "own.f": "applied"}
    assert lib.load("lib.late").f(1) == 2


def test_an_import_begun_while_the_first_apply_plans_is_patched(lib: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    lib.write("import time\ntime.sleep(0.2)\n" + CORE)
    prepare = transaction.prepare

    def prepare_slowly(*arguments: object) -> object:
        importer.start()
        while "lib.core" not in sys.modules:
            time.sleep(0.001)
        return prepare(*arguments)  # type: ignore[arg-type]

    importer = threading.Thread(target=lib.load, daemon=True)
    monkeypatch.setattr(transaction, "prepare", prepare_slowly)
    in_threads(lambda: patchwork.apply(lib.patch("f", ADD_ONE)))
    importer.join(HANGS)
    assert not importer.is_alive()
    assert lib.load().f(1) == 2
    assert states(patchwork.status()) == {"own.patch": "applied"}


def test_an_import_that_has_asked_the_finders_when_the_hook_is_registered_is_patched(
    lib: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib.write(CORE)
    wrapt.register_post_import_hook(lambda module: None, "lib.other")  # its finder is there
    asked = threading.Event()

    class Slow(importlib.machinery.SourceFileLoader):
        """Holds the import up between the finders and sys.modules."""

        def create_module(self, spec: object) -> None:
            asked.set()
            end = time.monotonic() + 5
            while "lib.core" not in import_hooks._watched and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(0.1)

    class Finder:
        """Comes after the hooks' finder."""

        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> object:
            if name != "lib.core" or threading.current_thread() is not importer:
                return None
            return importlib.util.spec_from_file_location(name, lib.path, loader=Slow(name, str(lib.path)))

    at = next(at for at, finder in enumerate(sys.meta_path) if type(finder).__name__ == "ImportHookFinder")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path[: at + 1], Finder, *sys.meta_path[at + 1 :]])
    importer = threading.Thread(target=lib.load, daemon=True)
    importer.start()
    assert asked.wait(HANGS)
    in_threads(lambda: patchwork.apply(lib.patch("f", ADD_ONE)))
    importer.join(HANGS)
    assert lib.load().f(1) == 2
    assert states(patchwork.status()) == {"own.patch": "applied"}


def test_apply_inside_an_import_hook(lib: Library) -> None:
    lib.write(CORE, late=CORE)
    second = lib.patch("f", ADD_ONE, name="own.late", module="lib.late")
    wrapt.register_post_import_hook(lambda module: patchwork.apply(second), "lib.core")
    patchwork.apply(lib.patch("f", ADD_ONE))
    assert lib.load().f(1) == 2
    assert lib.load("lib.late").f(1) == 2


def test_a_module_that_imports_itself_in_a_circle_is_patched(lib: Library) -> None:
    lib.write("from lib import user\n" + CORE, user="from lib import core\n\ndef call(x):\n    return core.f(x)\n")
    patchwork.apply(lib.patch("f", ADD_ONE), lib.patch("call", ADD_ONE, module="lib.user", name="own.call"))
    assert lib.load("lib.user").call(1) == 3


def test_revert_leaves_code_that_somebody_put_in_afterwards(lib: Library) -> None:
    core = lib.write(CORE).load()
    patchwork.apply(lib.patch("f", ADD_ONE))

    def other(x: int) -> int:
        return x * 100

    core.f.__code__ = other.__code__
    assert [outcome.state for outcome in patchwork.status()] == ["failed"]
    with pytest.warns(UserWarning, match=r"f was given other code \(.*test_applying\.py:\d+\) after it was patched"):
        patchwork.revert()
    assert core.f(2) == 200


def test_apply_does_not_replace_code_that_somebody_put_in_afterwards(lib: Library) -> None:
    core = lib.write(CORE).load()
    patch = lib.patch("f", ADD_ONE)
    patchwork.apply(patch)

    def other(x: int) -> int:
        return x * 100

    core.f.__code__ = other.__code__
    with pytest.raises(patchwork.PatchError, match=r"f was replaced or wrapped|does not run the code"):
        patchwork.apply(patch)
    assert core.f(2) == 200
    with pytest.warns(UserWarning, match="left as it is"):
        patchwork.revert()
