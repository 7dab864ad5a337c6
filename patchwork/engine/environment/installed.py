"""Finds installed packages and their sources, without importing anything that is not imported yet."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import pkgutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType

from wrapt.importer import ImportHookFinder

from ..errors import BrokenDependency, SourceUnavailable, TargetMissing
from .distributions import copies
from .import_errors import FAILURES, explain

_STANDARD = ("_frozen_importlib", "_frozen_importlib_external", "zipimport")


@dataclass(frozen=True)
class ModuleSource:
    """The file a module is, or would be, loaded from, its bytes, and the path of their .pyc ("" where there can be none)."""

    name: str
    path: str
    data: bytes
    cached: str = ""


def version_of(package: str) -> str | None:
    """Version of an installed distribution, or None.

    The imported module's own `__version__` is what runs; the metadata of the copy that would be imported answers before that.
    """
    name = package.replace("-", "_")
    version = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(version, str):
        return version
    with suppress(BrokenDependency, SourceUnavailable):  # told where the module itself is asked for
        spec = spec_of(name)
        if spec is not None and (found := copies(package, spec.origin).version) is not None:
            return found
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module is found, without importing it or its parents; None if its top-level package is not installed.

    Raises:
        TargetMissing: the package is there, the module is not.
        SourceUnavailable: a module of that name is there that no file stands behind.
        BrokenDependency: a finder fails for want of something else.
    """
    if (module := sys.modules.get(name)) is not None:
        found_spec: importlib.machinery.ModuleSpec | None = getattr(module, "__spec__", None)
        if found_spec is None:
            raise SourceUnavailable(
                f"{name} was not imported from a file", hint="a script, or a module made at run time, cannot be patched"
            )
        return found_spec
    top, *rest = name.split(".")
    spec = spec_of(top) if rest else _find(top, None)
    if spec is None:
        return None
    found = top
    for part in rest:
        places = spec.submodule_search_locations
        # Some packages put Path objects into their search path, which finders pass over.
        child = None if places is None else _find(f"{found}.{part}", [os.fspath(place) for place in places])
        if child is None:
            raise TargetMissing(
                f"there is no module {name}",
                where=f"{found} ({spec.origin or ', '.join(map(str, places or ()))})",
                hint="this release may have moved it: narrow the patch's `versions`",
            )
        found, spec = f"{found}.{part}", child
    return spec


def _find(name: str, places: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """What importlib.util.find_spec would find, which imports the parents.

    The import hooks' own finder is passed by: it calls importlib.util, and another thread's import would miss its hook meanwhile.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or isinstance(finder, ImportHookFinder):
            continue
        try:
            found: importlib.machinery.ModuleSpec | None = find(name, places)
        except FAILURES as error:
            parent = name.rpartition(".")[0]
            if isinstance(error, KeyError) and error.args == (parent,) and parent not in sys.modules:
                return _namespace(name, places or ())
            failure = explain(error, name)
            if isinstance(failure, TargetMissing):  # a finder that blocks a module says it so
                return None
            raise failure from error
        if found is not None:
            return found
    return None


def _namespace(name: str, places: Iterable[str]) -> importlib.machinery.ModuleSpec:
    """The spec of a namespace package in a package that is not imported; Python's own looks its parent up in sys.modules."""
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    for place in places:
        finder = pkgutil.get_importer(place)
        portion = None if finder is None else finder.find_spec(name)
        if portion is not None and portion.submodule_search_locations is not None:
            spec.submodule_search_locations = [*(spec.submodule_search_locations or ()), *portion.submodule_search_locations]
    return spec


def is_installed(package: str) -> bool:
    """Whether there is a module of that name; one without a file, or that cannot be imported, is there too."""
    try:
        return spec_of(package) is not None
    except (SourceUnavailable, BrokenDependency):
        return True


def read_source(spec: importlib.machinery.ModuleSpec) -> ModuleSource:
    """The bytes of a module's source, from a file or a zip.

    Raises:
        SourceUnavailable: it is built in, compiled only, or cannot be read.
    """
    loader, path = _loader_of(spec), spec.origin
    if path == "frozen" and (file := getattr(spec.loader_state, "filename", None)):
        # Python holds the code of `os` and its like in itself; where it has their files, they are what that code was made of.
        loader, path = importlib.machinery.SourceFileLoader(spec.name, file), file
    if path is None and spec.submodule_search_locations is not None:
        raise SourceUnavailable(
            f"{spec.name} is a namespace package, which has no code of its own",
            where=", ".join(map(str, spec.submodule_search_locations)),
            hint="name one of the modules in it as the target",
        )
    if path is None or not path.endswith((".py", ".pyw")):
        raise SourceUnavailable(
            f"{spec.name} has no Python source", where=str(path), hint="a compiled or built-in module cannot be patched"
        )
    # A loader of another kind may rewrite what it loads, and its .pyc holds that.
    cached = spec.cached if type(loader) is importlib.machinery.SourceFileLoader else None
    try:
        # A loader need not give the text; whether it is what the code was made of is seen from the code.
        get_data = getattr(loader, "get_data", importlib.machinery.SourceFileLoader(spec.name, path).get_data)
        return ModuleSource(spec.name, path, get_data(path), cached or "")
    except OSError as error:
        raise SourceUnavailable(f"the source of {spec.name} cannot be read: {error}", where=path) from None


def compiling_loader(module: ModuleType) -> str:
    """The class of a module's loader, if it compiles or runs the source in another way than Python's own; else ""."""
    spec = getattr(module, "__spec__", None)
    loader = None if spec is None else _loader_of(spec)
    kind = loader if isinstance(loader, type) else type(loader)
    plain = importlib.machinery.SourceFileLoader
    same = all(getattr(kind, name, None) is getattr(plain, name) for name in ("source_to_code", "get_code", "exec_module"))
    return "" if loader is None or same or kind.__module__ in _STANDARD else f"{kind.__module__}.{kind.__qualname__}"


def _loader_of(spec: importlib.machinery.ModuleSpec) -> object:
    """The loader of a module; an import hook stands before the one that it was put over."""
    return getattr(spec.loader, "loader", spec.loader)


def loaded(name: str) -> ModuleType | None:
    """The module if it is fully imported; None while it is being imported."""
    module = sys.modules.get(name)
    return None if module is None or _importing(module) else module


def settle(name: str) -> None:
    """Wait for an import of the module that another thread has begun. Never call it with a lock held that an import may need."""
    module = sys.modules.get(name)
    if module is not None and _importing(module):
        # Waits for the module's lock. An import that fails there is the other thread's to report; here it is no module then.
        with suppress(*FAILURES):
            importlib.import_module(name)


def _importing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
