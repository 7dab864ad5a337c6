"""Finds the patches that there are and those that a user means: built-in ones, packs, files, names, globs and switches."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import importlib
import importlib.metadata
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

from .engine.cases import check_cases
from .engine.environment.import_errors import FAILURES, explain
from .engine.errors import AnchorMissing, BrokenDependency, InvalidPatch, PatchError, TargetMissing, UnknownPatch
from .engine.live.process_state import as_ours
from .engine.patch import Patch

ENTRY_POINTS = "patchwork.patches"
_origins: dict[Patch, Path] = {}
# Exceptions that are reported as errors in the user's patch file.
_BAD_FILE = (
    *(OSError, SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError),
    *(AssertionError, RuntimeError, SystemExit),
)


def all_patches() -> tuple[Patch, ...]:
    """The built-in patches, then those of installed packs (entry-point group `patchwork.patches`).

    Raises:
        InvalidPatch: an entry point does not lead to patches, or two patches share a name.
        BrokenDependency: a pack needs what is not installed.
    """
    found: list[Patch] = list(importlib.import_module("patchwork.patches").PATCHES)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            loaded = point.load()
        except FAILURES as error:
            raise _not_loaded(point, error) from error
        found.extend(_patches_in(getattr(loaded, "PATCHES", loaded), f"the entry point {point.name!r} of group {ENTRY_POINTS!r}"))
    names: dict[str, Patch] = {}
    for patch in found:
        if names.setdefault(patch.name, patch) is not patch:
            raise InvalidPatch("two patches have this name", patch=patch.name, hint="uninstall or rename one of the packs")
    return tuple(found)


def _not_loaded(point: importlib.metadata.EntryPoint, error: Exception) -> PatchError:
    """Why a pack cannot be loaded: it is not what its entry point says, or something that it needs is missing."""
    what = f"the pack {point.value!r} of entry-point group {ENTRY_POINTS!r} cannot be loaded"
    found = explain(error, point.module)
    # An AttributeError of load() itself, which looks the object up, has gone through no file of the pack.
    if isinstance(found, TargetMissing) or (isinstance(error, AttributeError) and not found.where):
        return InvalidPatch(f"{what}: {error}", hint=_way_out(point))
    return BrokenDependency(f"{what}: {found.what}", where=found.where, hint=f"{found.hint}\nor {_way_out(point)}")


def _way_out(point: importlib.metadata.EntryPoint) -> str:
    owner = getattr(getattr(point, "dist", None), "name", "the distribution that registers it")
    return f"do without the pack: pip uninstall {owner}" if " " not in owner else f"repair or uninstall {owner}"


def _patches_in(value: object, origin: str) -> Iterable[Patch]:
    value = as_ours(value)
    if isinstance(value, Patch):
        return [value]
    if isinstance(value, Iterable):
        patches = [as_ours(item) for item in value]
        if all(isinstance(patch, Patch) for patch in patches):
            return patches
    raise InvalidPatch(
        f"{origin} leads to {type(value).__name__}, not to patches",
        hint="let it be a Patch, a list of them, or a module with PATCHES",
    )


def named(names: Iterable[str], folder: Path = Path()) -> tuple[Patch, ...]:
    """The patches that a person means, their cases checked.

    Args:
        names: names, globs, files of patches (`my_patches.py`), or some of a file (`my_patches.py::NAME`); none: all there are.
        folder: where the files are.

    Raises:
        UnknownPatch: a name or glob that fits none; names the closest.
        InvalidPatch: a file cannot be run, or holds no patches.
        CaseFails: a case of one of them does not hold.
    """
    chosen: list[str | Patch] = []
    for name in names:
        file, _, part = name.partition("::")
        if file.endswith(".py"):
            own = in_file(folder / file)
            chosen.extend(select([part], own) if part else own)
        else:
            chosen.append(name)
    patches = all_patches()
    found = select(chosen, patches) if chosen else patches
    for patch in found:
        check_cases(patch)
    return found


def in_file(path: Path) -> list[Patch]:
    """The patches of a file: its `PATCHES`, else every Patch that it gives a name. What it prints goes to stderr.

    Raises:
        InvalidPatch: it cannot be read or run, or holds no patches; `where` is its line.
    """
    file = path.absolute()
    sys.path.insert(0, str(file.parent))  # as for a script: it may import what lies beside it
    try:
        with contextlib.redirect_stdout(sys.stderr):
            values = runpy.run_path(str(file))
    except PatchError as error:
        raise error.about(file=str(path)) from None
    except _BAD_FILE as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = getattr(error, "lineno", None) or next(reversed(lines), None)
        raise InvalidPatch(
            f"the file of patches cannot be run: {type(error).__name__}: {error}",
            where=f"{path}:{line}" if line else str(path),
            hint="a file of patches is Python with PATCHES = [Patch(...), ...]",
        ) from error
    finally:
        sys.path.remove(str(file.parent))
    found = [*_patches_in(values["PATCHES"], str(path))] if "PATCHES" in values else []
    found = found or [value for value in values.values() if isinstance(value, Patch)]
    if not found:
        raise InvalidPatch("the file holds no patches", where=str(path), hint="write PATCHES = [Patch(...), ...]")
    _origins.update(dict.fromkeys(found, path))
    return found


def tell_command(error: PatchError | None, patch: Patch, package: str = "") -> None:
    """Where an anchor missed: let the command that shows which releases fit name the patch's file, and its package."""
    if isinstance(error, AnchorMissing):
        package = package or next(iter(patch.versions), "")
        against = f" --against '{package}{patch.versions.get(package, '')}'" if package else ""
        error.command = f"patchwork check {command_for(patch)}{against}"


def command_for(patch: Patch) -> str:
    """How a person names a patch on the command line: by its file, if it is of one."""
    return f"{_origins[patch]}::{patch.name}" if patch in _origins else patch.name


def newest_tested() -> Mapping[str, str]:
    """By distribution, the newest release that the built-in patches were checked against."""
    tested: Mapping[str, str] = importlib.import_module("patchwork.patches").TESTED
    return tested


def select(names: Iterable[str | Patch], patches: Iterable[Patch]) -> tuple[Patch, ...]:
    """The patches meant by names, globs (`trl.*`) and Patch objects, in the order of `patches`, own ones last.

    Raises:
        UnknownPatch: a name or glob that fits none; names the closest.
    """
    known = {patch.name: patch for patch in patches}
    chosen: dict[str, Patch] = {}
    own: list[Patch] = []
    for name in map(as_ours, names):
        if isinstance(name, Patch):
            own.extend([] if name in own or known.get(name.name) == name else [name])
            chosen.update({name.name: name} if known.get(name.name) == name else {})
            continue
        if not isinstance(name, str):
            raise UnknownPatch(f"{name!r} is no patch", hint="give a name, a glob such as 'trl.*', or a Patch")
        fitting = fnmatch.filter(known, name)
        if not fitting:
            near = difflib.get_close_matches(name, known, 3, 0.4)
            raise UnknownPatch(f"no patch is called {name!r}", nearest=", ".join(near), hint="`patchwork list` shows all names")
        chosen.update({patch: known[patch] for patch in fitting})
    return tuple([known[name] for name in known if name in chosen] + own)


def switched_off(exclude: Iterable[str], patches: Iterable[Patch]) -> dict[str, str]:
    """By patch name, why it is left out: `exclude`, or the environment variable `PATCHWORK_DISABLE`."""
    known = tuple(patches)
    disabled = [name.strip() for name in os.environ.get("PATCHWORK_DISABLE", "").split(",") if name.strip()]
    off = {patch.name: "switched off by PATCHWORK_DISABLE" for patch in select(disabled, known)}
    return {**{patch.name: "left out by exclude=" for patch in select(_names(exclude), known)}, **off}


def _names(exclude: Iterable[str]) -> Iterable[str]:
    return [exclude] if isinstance(exclude, str) else exclude
