"""The patches of kernels: each kernel reports its arguments, whatever they are called, from below its decorators."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import patchwork
from patchwork import Patch
from patchwork.patches import PATCHES as BUILT_IN

PATCHES = [patch for patch in BUILT_IN if ".handshake." in patch.name]
KERNEL = """\
import functools


def dispatch(name):
    def above(function):
        @functools.wraps(function)
        def dispatched(*args, **kwargs):
            return function(*args, **kwargs)

        return dispatched

    return above


{head}
"""
FUNCTION = "@functools.lru_cache\n@dispatch('kernel')\ndef {name}(x, renamed=None, **kwargs):\n    return x\n"
METHOD = "class {owner}:\n    def {name}(self, x, renamed=None, **kwargs):\n        return x\n"


@pytest.fixture(autouse=True)
def reverted() -> Iterator[None]:
    yield
    patchwork.revert()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Patch], None]]:
    """Installs a package with the function that a patch is for, in its newest release."""
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    packages: list[str] = []

    def install(patch: Patch) -> None:
        file = tmp_path / "site" / f"{patch.module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True)
        for folder in file.parents[: patch.module.count(".")]:
            (folder / "__init__.py").touch()
        owner, _, name = patch.qualname.rpartition(".")
        file.write_text(KERNEL.format(head=(METHOD if owner else FUNCTION).format(owner=owner, name=name)))
        [distribution] = patch.versions
        info = tmp_path / "site" / f"{distribution.replace('-', '_')}-99.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 99.0\n")
        monkeypatch.syspath_prepend(tmp_path / "site")
        packages.append(patch.module.partition(".")[0])

    yield install
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
@pytest.mark.parametrize("imported", [False, True], ids=["before the import", "after the import"])
def test_a_kernel_reports_what_it_is_called_with(
    patch: Patch, imported: bool, installed: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(patch.module.partition(".")[0]) is not None:
        pytest.skip("the real package is installed")
    seen: list[tuple[str, Any]] = []
    monkeypatch.setattr("patchwork.packing.hooks.saw", lambda name, given: seen.append((name, dict(given))))
    installed(patch)
    if imported:
        importlib.import_module(patch.module)
    [outcome] = patchwork.apply(patch)
    assert outcome.state == ("applied" if imported else "pending"), outcome.detail
    found: Any = importlib.import_module(patch.module)
    for part in patch.qualname.split("."):
        found = getattr(found() if isinstance(found, type) else found, part)
    assert found(1, renamed=2, other=3) == 1
    [(name, given)] = seen
    assert name == patch.qualname.rpartition(".")[2]
    assert (given["x"], given["renamed"], given["kwargs"]) == (1, 2, {"other": 3})


def test_kernels_that_are_not_installed_are_no_matter() -> None:
    missing = [patch for patch in PATCHES if find_spec(patch.module.partition(".")[0]) is None]
    if not missing:
        pytest.skip("the real packages are installed")
    assert {outcome.state for outcome in patchwork.apply(*missing)} == {"absent"}
