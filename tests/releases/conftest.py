"""Wheels made for one test, in a folder that stands for the package index: no test of releases needs a network."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from patchwork import Patch, required

Text = str | bytes


class Shelf:
    """What can be fetched: wheels in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wheel(self, name: str, version: str, files: dict[str, Text], *, filename: str = "") -> Path:
        """A wheel that pip takes, of files by their path in it."""
        stem = f"{name.replace('-', '_')}-{version}"
        path = self.folder / (filename or f"{stem}-py3-none-any.whl")
        with zipfile.ZipFile(path, "w") as archive:
            for member, text in files.items():
                archive.writestr(member, text)
            archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{stem}.dist-info/RECORD", "")
        return path

    def lib(self, version: str, core: Text, **others: Text) -> Path:
        """A wheel of the package `lib` with a module `lib.core`, and further ones."""
        files = {"lib/__init__.py": "", "lib/core.py": core, **{f"lib/{name}.py": text for name, text in others.items()}}
        return self.wheel("lib", version, files)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """An empty index that pip looks in, and nowhere else; an empty cache."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    return Shelf(folder)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """The folder that fetched wheels are kept in."""
    return tmp_path / "cache" / "wheels"


@pytest.fixture
def keep(shelf: Shelf, wheels: Path) -> Callable[[], None]:
    """Copies the shelf into the cache, for a test of what is done with wheels: each that is fetched starts a pip."""
    return lambda: shutil.copytree(shelf.folder, wheels, ignore=lambda _, names: [n for n in names if not n.endswith(".whl")])


@pytest.fixture
def unplugged(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index cannot be reached; what lies on the shelf can."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")


@pytest.fixture
def patch() -> Callable[..., Patch]:
    """A patch of `lib.core:f` that turns `a()` into `b()`."""

    def make(name: str = "lib.patch", *, module: str = "lib.core", old: str = "a()", new: str = "b()", **versions: str) -> Patch:
        ranges = {package.replace("_", "-"): text for package, text in versions.items()}
        return Patch(name=name, target=f"{module}:f", versions=ranges, edits=[required(old).replace(new)])

    return make
