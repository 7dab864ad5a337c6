"""patchwork imported a second time in one process: it knows what the first import patched, and takes that over.

Module purgers (test runners, notebook reloaders) delete patchwork from sys.modules; the functions that it patched stay patched.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Library

OWN = """
    def f(x):
        return x + 1

    def make(k):
        def inner(x):
            return x + k
        return inner

    before = make(10)
    """
HEAD = """
    import importlib, sys, warnings
    warnings.simplefilter("error")
    import patchwork

    def patch(old="x + 1", new="x + 2", name="a.f", target="own:f"):
        from patchwork import Patch, required
        return Patch(name=name, target=target, edits=[required(old).replace(new)])

    def purge(*packages):
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]

    def again(*more):
        global patchwork
        purge("patchwork", *more)
        import patchwork

    def error_of(action):
        try:
            action()
        except patchwork.PatchError as error:
            return f"{type(error).__name__}: {error}"

    def states():
        return {outcome.patch: outcome.state for outcome in patchwork.status()}
    """


@pytest.fixture
def check(lib: Library, tmp_path, monkeypatch):
    """Run a script in a process of its own, where `own` can be imported; its asserts are the test's."""
    (lib.root / "own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.setenv("PYTHONPATH", str(lib.root))

    def run(script: str) -> None:
        code = textwrap.dedent(HEAD) + textwrap.dedent(script)
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    return run


def test_apply_status_and_revert_go_on_with_what_the_first_import_patched(check):
    check("""
        import own
        from own import f
        code = f.__code__
        patchwork.apply(patch())
        for _ in range(2):
            again()
            assert states() == {"a.f": "applied"}
            assert [outcome.state for outcome in patchwork.apply(patch())] == ["applied"]
            assert (own.f(1), states()) == (3, {"a.f": "applied"})
        assert len(patchwork.revert()) == 0
        assert (f(1), own.f(1), states()) == (2, 2, {})
        assert f.__code__ is code
        patchwork.apply(patch())
        assert f(1) == 3
        """)


def test_revert_alone_gives_the_code_the_defaults_and_inner_functions_back(check):
    check("""
        import own
        from patchwork import Patch, parameter
        code, inner = own.f.__code__, own.before.__code__
        edits = [parameter("k", default="5"), *patch(new="x + k").edits]
        patchwork.apply(Patch(name="a.f", target="own:f", edits=edits), patch("x + k", "x - k", "b.make", "own:make"))
        assert (own.f(1), own.before(1)) == (6, -9)
        since = own.make(1)
        again()
        patchwork.revert()
        assert (own.f(1), own.before(1), since(1)) == (2, 11, 2)
        assert own.f.__code__ is code and own.f.__kwdefaults__ is None and own.before.__code__ is inner
        """)


def test_one_of_two_is_taken_out_and_another_is_added(check):
    check("""
        import own
        patchwork.apply(patch(), patch("x + k", "x - k", "b.make", "own:make"))
        again()
        patchwork.revert("a.f")
        assert (own.f(1), own.before(1), states()) == (2, -9, {"b.make": "applied"})
        again()
        from patchwork import Patch, at_start
        patchwork.apply(Patch(name="c.f", target="own:f", edits=[at_start("x = x * 10")]))
        assert (own.f(1), own.before(1), states()) == (11, -9, {"b.make": "applied", "c.f": "applied"})
        again()
        patchwork.apply(patch())
        assert own.f(1) == 12
        """)


def test_an_apply_that_fails_leaves_what_is_in_force(check):
    check("""
        import own
        patchwork.apply(patch())
        again()
        assert error_of(lambda: patchwork.apply(patch("gone", name="b.f"))).startswith("AnchorMissing: b.f")
        assert "two different patches have this name" in error_of(lambda: patchwork.apply(patch(new="x + 7")))
        assert (own.f(1), states()) == (3, {"a.f": "applied"})
        patchwork.revert()
        assert own.f(1) == 2
        """)


@pytest.mark.parametrize("second", ["pass", "patchwork.status()", "patchwork.apply(patch())"])
def test_what_waits_for_its_import_is_patched_once_by_the_hook_of_the_first(check, second):
    check(f"""
        patchwork.apply(patch())
        again()
        {second}
        import own
        assert (own.f(1), states()) == (3, {{"a.f": "applied"}})
        patchwork.revert()
        assert own.f(1) == 2
        """)


def test_what_waits_is_patched_although_patchwork_is_gone(check):
    check("""
        patchwork.apply(patch())
        purge("patchwork")
        import own
        assert own.f(1) == 3
        import patchwork
        assert states() == {"a.f": "applied"}
        patchwork.revert()
        assert own.f(1) == 2
        """)


def test_revert_takes_out_what_waits(check):
    check("""
        patchwork.apply(patch())
        again()
        patchwork.revert()
        import own
        assert (own.f(1), states()) == (2, {})
        patchwork.apply(patch())
        assert own.f(1) == 3
        """)


def test_a_swap_that_fails_at_the_import_is_an_error_of_the_second_import(check):
    check("""
        patchwork.apply(patch())
        again()
        patchwork.status()
        import pathlib
        root = next(path for path in sys.path if (pathlib.Path(path) / "own.py").is_file())
        (pathlib.Path(root) / "own.py").write_text("def f(x):\\n    return x\\n")
        for _ in range(2):
            assert error_of(lambda: importlib.import_module("own")).startswith("AnchorMissing: a.f")
        """)


def test_what_was_purged_with_its_target_is_over(check):
    check("""
        import own
        from own import f
        patchwork.apply(patch())
        again("own")
        assert states() == {}
        import own
        assert (own.f(1), f(1)) == (2, 2)
        patchwork.apply(patch("x + k", "x - k", "b.make", "own:make"))
        assert (own.f(1), states()) == (2, {"b.make": "applied"})
        """)


@pytest.mark.parametrize(
    "module", ["transaction", "live.swap", "live.record", "live.lookup", "patch", "report", "live.import_hooks"]
)
def test_a_module_of_patchwork_that_is_reloaded_in_place(check, module):
    check(f"""
        import own
        patchwork.apply(patch())
        import importlib, patchwork.engine.{module}
        importlib.reload(patchwork.engine.{module})
        if {module!r} in ("patch", "report"):
            importlib.reload(sys.modules["patchwork.engine.transaction"])
        assert (own.f(1), [state for state in states().values()]) == (3, ["applied"])
        patchwork.revert()
        assert own.f(1) == 2
        """)


def test_patches_made_with_the_first_import_are_patches_for_the_second(check):
    check("""
        import own
        mine = patch()
        again()
        assert [outcome.state for outcome in patchwork.apply(mine)] == ["applied"]
        assert own.f(1) == 3
        assert [outcome.state for outcome in patchwork.apply(patch())] == ["applied"]
        patchwork.revert(mine)
        assert own.f(1) == 2
        assert "is no patch" in error_of(lambda: patchwork.apply(7))
        """)


def test_a_pack_that_was_not_purged(check, lib):
    folder = lib.root / "pack-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[patchwork.patches]\npack = pack\n")
    (lib.root / "pack.py").write_text(
        "from patchwork import Patch, required\n"
        "PATCHES = [Patch(name='pack.f', target='own:f', edits=[required('x + 1').replace('x + 2')])]\n"
    )
    check("""
        import own
        for _ in range(2):
            assert [outcome.state for outcome in patchwork.apply("pack.f")] == ["applied"]
            assert own.f(1) == 3
            again()
        """)


def test_another_patchwork_whose_patches_cannot_be_read_says_so(check):
    check("""
        import own
        patchwork.apply(patch())
        again()
        status = patchwork.status
        import patchwork.engine.patch
        del patchwork.engine.patch.Edit
        said = error_of(status)
        assert said.startswith("ForeignPatch: own was patched by an earlier import of another patchwork in this process"), said
        assert "next: restart Python" in said
        assert own.f(1) == 3
        """)


@pytest.mark.parametrize("writable", [True, False])
def test_code_of_a_patch_that_nothing_is_known_of_is_named(check, tmp_path, monkeypatch, writable):
    if not writable:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "file" / "below"))
    check("""
        import own
        patchwork.apply(patch())
        patched = own.f.__code__
        patchwork.revert()
        own.f.__code__ = patched  # as whoever kept it may do
        said = error_of(lambda: patchwork.apply(patch()))
        assert said.startswith("ForeignPatch: a.f: f runs code that was put there by an earlier import of patchwork"), said
        assert "next: restart Python" in said
        """)
