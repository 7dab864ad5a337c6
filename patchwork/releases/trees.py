"""Reads the sources of a wheel, a source tree or site-packages, without importing or unpacking anything."""

from __future__ import annotations

import difflib
import functools
import re
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..engine.environment.installed import ModuleSource
from ..engine.errors import ReleaseUnavailable, SourceUnavailable, TargetMissing

_COMPILED = (".so", ".pyd", ".pyc")
# What reading a damaged archive raises; RuntimeError and NotImplementedError stand for encrypted and exotic members.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class Tree:
    """The sources of one release of one distribution.

    Attributes:
        package: name of the distribution, as patches write it in `versions`.
        version: its release; None if nothing tells, which counts as newer than every release.
        path: the wheel, or the folder that top-level modules lie in.
        tops: the top-level modules that belong to it, where the folder holds others too; empty: all that are there.
    """

    package: str
    version: str | None
    path: Path
    tops: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.package} {self.version or '(version unknown)'}"

    def provides(self, top: str) -> bool:
        """Whether the top-level module `top` is in here.

        Raises:
            ReleaseUnavailable: the wheel is damaged.
        """
        if self.tops and top not in self.tops:
            return False
        if self.path.is_dir():
            return has_module(self.path, top)
        return top in _tops(open_wheel(self.path))

    def read(self, module: str) -> ModuleSource:
        """The source of a module; its path is the tree's, and the file's own in it.

        Raises:
            TargetMissing: there is no such module; names the nearest ones.
            SourceUnavailable: it is compiled only.
            ReleaseUnavailable: the file cannot be read, or the wheel is damaged.
        """
        stem = module.replace(".", "/")
        for member in (f"{stem}/__init__.py", f"{stem}.py"):
            data = read_member(self.path, member)
            if data is not None:
                return ModuleSource(module, f"{self.path.as_posix()}/{member}", data)
        names = self.names(module.partition(".")[0])
        compiled = [name for name in names if name.startswith(stem + ".") and name.endswith(_COMPILED)]
        if compiled:
            raise SourceUnavailable(
                f"{module} has no Python source", where=compiled[0], hint="a compiled module cannot be patched"
            )
        raise TargetMissing(
            f"{self.package} has no module {module}",
            where=f"{self} ({self.path})",
            nearest=", ".join(_nearest(module, names)),
            hint="this release may have moved it: narrow the patch's `versions`",
        )

    def names(self, top: str) -> list[str]:
        """The files under the top-level module `top`, as paths from the tree."""
        if self.path.is_file():
            return [name for name in open_wheel(self.path).NameToInfo if name.startswith((f"{top}/", f"{top}."))]
        found = [*self.path.glob(f"{top}.*"), *(self.path / top).rglob("*.*")]
        return [file.relative_to(self.path).as_posix() for file in found]


def read_member(path: Path, member: str) -> bytes | None:
    """A file of a wheel or folder; None if it is not there. Raises ReleaseUnavailable if it cannot be read."""
    try:
        if path.is_dir():
            file = path / member
            return file.read_bytes() if file.is_file() else None
        archive = open_wheel(path)
        return archive.read(member) if member in archive.NameToInfo else None
    except _DAMAGED as error:
        raise ReleaseUnavailable(
            f"{member} cannot be read: {type(error).__name__}: {error}",
            where=str(path),
            hint="check who may read it" if path.is_dir() else "the file is damaged: delete it and fetch it again",
        ) from None


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def has_module(folder: Path, top: str) -> bool:
    """Whether a folder holds the top-level module `top`: a package, a file, or a folder with Python files somewhere in it."""
    if (folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file():
        return True
    compiled = (file for file in folder.glob(f"{top}.*") if file.suffix in _COMPILED)
    return any(compiled) or any((folder / top).rglob("*.py"))


def has_python(folder: Path) -> bool:
    """Whether a folder holds Python files or is a checkout, and not merely something else of its name."""
    signs = ("*.py", "*/*.py", "src/*/*.py", "pyproject.toml", "setup.cfg")
    return folder.is_dir() and any(next(folder.glob(sign), None) for sign in signs)


def open_wheel(path: Path) -> zipfile.ZipFile:
    """The archive, its table of contents read once for a file that stays as it is.

    Raises:
        ReleaseUnavailable: it cannot be opened, or is no archive.
    """
    try:
        state = path.stat()
        return _opened(str(path), state.st_mtime_ns, state.st_size)
    except _DAMAGED as error:
        raise ReleaseUnavailable(
            f"the wheel cannot be opened: {error}", where=str(path), hint="fetch it again, or give another file"
        ) from None


@functools.lru_cache(maxsize=2)  # wheels are read one after the other; an open file is not worth keeping
def _opened(path: str, changed: int, size: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


@functools.lru_cache(maxsize=2)
def _tops(archive: zipfile.ZipFile) -> set[str]:
    names = archive.NameToInfo
    return {re.split(r"[/.]", name, maxsplit=1)[0] for name in names if name.endswith((".py", *_COMPILED))}


def _nearest(module: str, names: Iterable[str]) -> list[str]:
    """Modules of the last part's name elsewhere, and those whose name is like the first part that is missing."""
    found = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names if name.endswith(".py")}
    packages = {name[:end] for name in found for end in range(len(name)) if name[end] == "."} | found
    last = module.rpartition(".")[2]
    moved = sorted(name for name in found if name.rpartition(".")[2] == last)[:3]
    parent = module
    while "." in parent and parent not in packages:
        parent, _, missing = parent.rpartition(".")
    if parent == module or parent not in packages:
        return moved
    beside = [name for name in packages if name.rpartition(".")[0] == parent]
    like = difflib.get_close_matches(f"{parent}.{missing}", beside, 3, 0.8)
    return list(dict.fromkeys([*moved, *like]))
