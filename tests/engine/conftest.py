"""Packages written for one test, imported or not; and no patch, module or file left behind by any test."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import patchwork
from patchwork import Patch

Source = str | bytes


class Library:
    """A package `lib` with one module `lib.core`, as another author wrote it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, core: Source, **others: Source) -> Library:
        """Write `lib/core.py` and further modules; text is dedented, bytes are written as they are."""
        folder = self.root / "lib"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        for name, source in {"core": core, **others}.items():
            data = source if isinstance(source, bytes) else textwrap.dedent(source).lstrip("\n").encode()
            (folder / f"{name}.py").write_bytes(data)
        importlib.invalidate_caches()
        return self

    @property
    def path(self) -> Path:
        return self.root / "lib" / "core.py"

    def load(self, name: str = "lib.core") -> ModuleType:
        return importlib.import_module(name)

    def patch(self, qualname: str, *edits: object, name: str = "own.patch", module: str = "lib.core", **more: object) -> Patch:
        return Patch(name=name, target=f"{module}:{qualname}", edits=edits, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def clean_slate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PATCHWORK_DISABLE", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two sources of one size within a second share a .pyc
    before = set(sys.modules)
    yield
    patchwork.revert()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("lib", "other", "zipped", "outer"):
            del sys.modules[name]


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    return Library(root)


@pytest.fixture
def loaded(lib: Library) -> Callable[[str], ModuleType]:
    """Write `lib.core` and import it."""
    return lambda source: lib.write(source).load()
