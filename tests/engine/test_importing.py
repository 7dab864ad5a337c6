"""Why a module cannot be imported: itself not there, or what it needs; through other people's wrappings, and never mixed up."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Iterator

import pytest

import patchwork
from patchwork import BrokenDependency, InvalidPatch, PatchError, TargetMissing, required
from patchwork.commands.import_trials import try_imports
from patchwork.engine.environment.import_errors import explain
from patchwork.engine.environment.installed import is_installed, spec_of
from patchwork.selection import all_patches

EDIT = required("return 1").replace("return 2")
F = "def f():\n    return 1\n"


def cause(module: str) -> PatchError:
    """What `explain` makes of the failure to import `module`."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return explain(error, module)
    raise AssertionError(f"{module} can be imported")


@pytest.mark.parametrize("module", ["lib.gone", "lib.gone.deeper", "lib.core.inner", "nowhere", "nowhere.core"])
def test_a_module_that_is_not_there_is_missing(lib, module):
    lib.write(F)
    error = cause(module)
    assert type(error) is TargetMissing
    assert error.what == f"there is no module {module}"


def test_a_package_that_a_module_needs_is_named_with_the_next_command_and_the_line(lib):
    lib.write("import os\nimport nowhere_at_all\n")
    error = cause("lib.core")
    assert type(error) is BrokenDependency
    assert str(error) == (
        "lib.core cannot be imported: it needs nowhere_at_all, which is not installed\n"
        f"  where: {lib.path}:2\n"
        "  next: pip install nowhere_at_all"
    )


def test_the_hint_is_the_name_that_pip_knows(lib):
    lib.write("raise ModuleNotFoundError('No module named fla', name='fla')\n")
    assert cause("lib.core").hint == "pip install flash-linear-attention"


# The name that is missing begins as the module's does, or the other way round, and is not it.
@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("lib.core", "lib.corex"),
        ("lib.core", "libx"),
        ("lib.core", "li"),
        ("lib.core", "lib.core.inner"),
        ("lib.core", "lib.cor"),
        ("lib.core", "core"),
        ("lib.core", "lib.other.core"),
    ],
)
def test_a_name_that_begins_alike_is_another(lib, module, missing):
    lib.write(f"raise ModuleNotFoundError('No module named', name={missing!r})\n")
    error = cause(module)
    assert type(error) is BrokenDependency
    assert missing in error.what


def test_a_module_whose_name_another_begins_with_is_not_taken_for_it(lib):
    lib.write(F, siglip=F)
    patch = lib.patch("f", EDIT, module="lib.siglipx")
    with pytest.raises(TargetMissing, match=r"there is no module lib\.siglipx"):
        patchwork.apply(patch)
    assert type(cause("lib.siglipx")) is TargetMissing
    lib.write("import lib.siglipx\n")
    assert type(cause("lib.core")) is BrokenDependency


def test_a_module_of_a_package_that_is_there_is_asked_for_in_another_release(lib):
    lib.write("import packaging.gone\n")
    error = cause("lib.core")
    assert "it needs packaging.gone, which the installed packaging does not have" in error.what
    assert error.hint == "pip install --upgrade packaging"


def test_a_name_that_a_package_does_not_have_is_a_dependency_of_another_release(lib):
    lib.write("from packaging.version import Gone\n")
    error = cause("lib.core")
    assert type(error) is BrokenDependency
    assert "cannot import name 'Gone' from 'packaging.version'" in error.what
    assert "pip install --force-reinstall packaging" in error.hint


def test_a_package_that_lacks_a_module_of_its_own_is_installed_in_part(lib):
    lib.write("import lib.helper\n")
    error = cause("lib.core")
    assert type(error) is BrokenDependency
    assert "its own package lacks lib.helper" in error.what
    assert error.hint == "the package is there in part: pip install --force-reinstall lib"


# How lazy modules hide the reason: transformers raises a nameless ModuleNotFoundError, TRL and older transformers a RuntimeError,
# others forget `from`.
@pytest.mark.parametrize(
    "raised",
    [
        "raise ModuleNotFoundError('Could not import module X. Are its requirements defined correctly?') from error",
        "raise RuntimeError(f'Failed to import lib.inner because of the following error:\\n{error}') from error",
        "raise RuntimeError('failed')",
        "raise AttributeError('lib has no attribute X')",
        "raise ImportError('lib needs nowhere: pip install nowhere')",
    ],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_reason_is_found_through_what_lazy_modules_make_of_it(lib, raised, layers):
    def wrapping(name: str) -> str:
        return f"try:\n    import {name}\nexcept Exception as error:\n    {raised}\n"

    lib.write(
        wrapping("lib.middle"), middle=wrapping("lib.inner") if layers == 2 else "import lib.inner\n", inner="import nowhere\n"
    )
    error = cause("lib.core")
    assert type(error) is BrokenDependency
    assert "it needs nowhere, which is not installed" in error.what
    assert error.where == f"{lib.root / 'lib' / 'inner.py'}:1"


def test_what_was_missing_and_done_without_is_not_the_reason(lib):
    lib.write("try:\n    import fast_one\nexcept ImportError:\n    import slow_one\n")
    assert "it needs slow_one, which is not installed" in cause("lib.core").what
    lib.write("try:\n    import fast_one\nexcept ImportError:\n    raise RuntimeError('no luck') from None\n")
    assert "RuntimeError: no luck" in cause("lib.core").what


def test_a_chain_of_causes_that_comes_round_ends():
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert "RuntimeError: two" in explain(one, "lib.core").what


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = (\n", "SyntaxError: '(' was never closed"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise ImportError\n", "ImportError: "),
        (
            "raise ImportError('this needs the torchvision library\\nsee there')\n",
            "ImportError: this needs the torchvision library",
        ),
    ],
)
def test_any_other_failure_is_told_as_it_is(lib, source, said):
    lib.write(source)
    error = cause("lib.core")
    assert type(error) is BrokenDependency
    assert said in error.what
    assert "see there" not in error.what


class Blocking(importlib.abc.MetaPathFinder):
    """A finder that raises for one module, as tests and lazy installers do."""

    def __init__(self, blocked: str, missing: str) -> None:
        self.blocked = blocked
        self.missing = missing

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.blocked:
            raise ModuleNotFoundError(f"No module named {self.missing!r}", name=self.missing)


@pytest.fixture
def blocked(lib, monkeypatch) -> Iterator[None]:
    lib.write(F)

    def block(name: str, missing: str) -> None:
        monkeypatch.setattr(sys, "meta_path", [Blocking(name, missing), *sys.meta_path])

    return block


def test_a_package_that_a_finder_denies_is_absent(lib, blocked):
    blocked("lib", "lib")
    assert not is_installed("lib")
    assert patchwork.apply(lib.patch("f", EDIT))["own.patch"].state == "absent"


def test_a_module_that_a_finder_denies_is_missing(lib, blocked):
    blocked("lib.core", "lib.core")
    with pytest.raises(TargetMissing, match=r"there is no module lib\.core"):
        patchwork.apply(lib.patch("f", EDIT))


@pytest.mark.parametrize("name", ["lib", "lib.core"])
def test_a_finder_that_fails_for_want_of_something_else_is_a_broken_dependency(lib, blocked, name):
    blocked(name, "decoder")
    with pytest.raises(BrokenDependency, match=f"{name} cannot be imported: it needs decoder, which is not installed") as caught:
        patchwork.apply(lib.patch("f", EDIT))
    assert (caught.value.patch, caught.value.target) == ("own.patch", "lib.core:f")
    report = patchwork.apply(lib.patch("f", EDIT), strict=False)
    assert report["own.patch"].state == "failed"
    with pytest.raises(BrokenDependency):
        spec_of("lib.core")


def register(lib, value: str) -> None:
    folder = lib.root / "pack-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[patchwork.patches]\npack = {value}\n")


@pytest.mark.parametrize(
    "source", ["import nowhere\n", "try:\n    import nowhere\nexcept ImportError as e:\n    raise RuntimeError from e\n"]
)
def test_a_pack_whose_dependency_is_missing_says_so(lib, source):
    lib.write(F, pack=source)
    register(lib, "lib.pack")
    with pytest.raises(BrokenDependency) as caught:
        all_patches()
    assert "the pack 'lib.pack' of entry-point group 'patchwork.patches' cannot be loaded" in caught.value.what
    assert "it needs nowhere, which is not installed" in caught.value.what
    assert caught.value.hint.splitlines() == ["pip install nowhere", "or do without the pack: pip uninstall pack"]


@pytest.mark.parametrize("value", ["lib.gone", "lib.packx", "lib.pack:GONE"])
def test_a_pack_that_is_not_there_is_wrong(lib, value):
    lib.write(F, pack="PATCHES = []\n")
    register(lib, value)
    with pytest.raises(InvalidPatch, match="cannot be loaded"):
        all_patches()


@pytest.fixture
def elsewhere(lib, monkeypatch):
    """The library, found by other processes too."""
    monkeypatch.setenv("PYTHONPATH", str(lib.root))
    return lib


def test_imports_are_tried_in_another_process_and_each_failure_has_its_kind(elsewhere):
    elsewhere.write(F, noisy="print('hello')\n", needy="import nowhere\n", lazy="import lib.needy\n", wrong="1 / 0\n")
    trials = try_imports(["lib.core", "lib.noisy", "lib.needy", "lib.lazy", "lib.gone", "lib.wrong"])
    kinds = {trial.module: trial.as_dict()["kind"] for trial in trials}
    assert kinds == {
        "lib.core": None,
        "lib.noisy": None,
        "lib.needy": "BrokenDependency",
        "lib.lazy": "BrokenDependency",
        "lib.gone": "TargetMissing",
        "lib.wrong": "BrokenDependency",
    }
    assert "next: pip install nowhere" in str(trials[3].error)
    assert not any(name.partition(".")[0] == "lib" for name in sys.modules)


@pytest.mark.parametrize(
    ("source", "code"), [("import sys\nsys.exit(3)\n", "3"), ("import os\nos.abort()\n", "-6"), ("raise KeyboardInterrupt\n", "")]
)
def test_a_module_that_ends_python_is_named_and_the_rest_not_tried(elsewhere, source, code):
    elsewhere.write(F, deadly=source)
    first, second, third = try_imports(["lib.core", "lib.deadly", "lib.other"])
    assert first.error is None
    assert f"lib.deadly cannot be imported: doing so ends Python with exit code {code}" in str(second.error)
    assert "lib.other was not tried" in str(third.error)


def test_no_module_is_no_process():
    assert try_imports([]) == []
