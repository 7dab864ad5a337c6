"""Resolves `--against`: a release, a range of them, the newest one, a folder or a wheel becomes trees."""

from __future__ import annotations

import difflib
import email
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from ..engine.errors import ReleaseUnavailable, UnknownRelease
from ..engine.patch import Patch
from .folders import folder_trees, for_what
from .index import versions_of
from .pip import OnlySources, neighbours, versions_in
from .trees import Tree, canonical, has_python, open_wheel, read_member
from .wheels import Progress, fetch_each

_FORMS = "write PKG==5.9.0, 'PKG>=5.0,<6' (in quotes), PKG for its newest release, a folder or a wheel"
_UNPACK = "unpack a source archive and give its folder"


@dataclass(frozen=True)
class LeftOut:
    """A release of a range that has no wheel to look at."""

    package: str
    version: str
    error: UnknownRelease

    @property
    def why(self) -> str:
        """The reason in a few words."""
        return "only source archives" if isinstance(self.error, OnlySources) else "no wheel"


@dataclass(frozen=True)
class Meant:
    """What a text means.

    Attributes:
        trees: ascending.
        left_out: releases of the range that have no wheel.
        note: what else it could have meant; "" for nothing.
    """

    trees: tuple[Tree, ...]
    left_out: tuple[LeftOut, ...] = ()
    note: str = ""


def packages_of(patches: Iterable[Patch]) -> dict[str, str]:
    """By top-level module that the patches are for, the name of its distribution.

    That is the one in `versions` that is named alike, else the only one in `versions`, else the module's own name.
    """
    found: dict[str, str] = {}
    for patch in patches:
        top = patch.module.partition(".")[0]
        alike = [name for name in patch.versions if canonical(name) == canonical(top)]
        only = list(patch.versions) if len(patch.versions) == 1 else []
        name = next(iter(alike or only), None)
        if name is not None:
            found[top] = name
        else:
            found.setdefault(top, top)
    return found


def resolve(text: str, packages: Mapping[str, str], progress: Progress | None = None) -> Meant:
    """What `text` means: `PKG==V`, `PKG>=A,<B`, `PKG` (its newest release), a folder or a wheel.

    Args:
        packages: what the patches are for, as `packages_of` gives it. One of these names means the package, even where a
            folder is called so, too.
        progress: told of each wheel fetched.

    Raises:
        UnknownRelease: it names nothing, or nothing that any patch is for.
        ReleaseUnavailable: the sources cannot be had.
    """
    path = os.path.expanduser(text)
    if not text.strip():
        raise UnknownRelease("--against is empty", hint=_FORMS)
    named = {canonical(name) for name in (*packages, *packages.values())}
    if canonical(text.strip()) not in named and os.path.exists(path):
        trees = folder_trees(Path(path), packages) if os.path.isdir(path) else [wheel_tree(Path(path), packages)]
        return Meant(tuple(trees))
    if "/" in text or os.sep in text or text.startswith((".", "~")) or text.endswith(".whl"):
        parent = Path(path).absolute().parent
        beside = os.listdir(parent) if parent.is_dir() else []
        raise UnknownRelease(
            f"there is no file or folder {text}",
            nearest=", ".join(difflib.get_close_matches(Path(path).name, beside, 3)),
            hint=_FORMS,
        )
    folder = f"the folder ./{path.strip()} is meant by ./{path.strip()}" if has_python(Path(path.strip())) else ""
    try:
        meant = _released(text, packages, progress)
    except (UnknownRelease, ReleaseUnavailable) as error:
        error.hint = "; ".join(filter(None, (error.hint, _advice(error), folder)))
        raise
    return replace(meant, note=f"{text.strip()}: the newest release; {folder}") if folder else meant


def _advice(error: UnknownRelease | ReleaseUnavailable) -> str:
    """How to go on without the index."""
    if isinstance(error, OnlySources):
        return f"{_UNPACK}, or leave it out of a range with !="
    return "or give --against a wheel or a folder" if isinstance(error, ReleaseUnavailable) else ""


def _released(text: str, packages: Mapping[str, str], progress: Progress | None) -> Meant:
    try:
        asked = Requirement(text)
    except InvalidRequirement as error:
        what = f"{text!r} is neither a release nor a file or folder"
        raise UnknownRelease(what, nearest=str(error).partition("\n")[0], hint=_FORMS) from None
    if asked.url or asked.marker or asked.extras:
        raise UnknownRelease(f"{text!r} says more than a package and its versions", hint=_FORMS)
    # A module's name will do for its distribution's.
    package = next((packages[top] for top in packages if canonical(top) == canonical(asked.name)), _spelled(asked.name, packages))
    versions = _versions(package, asked.specifier)
    if package not in packages.values():
        # Only the sources tell whether it holds a module that a patch is for: see before a whole range is fetched.
        newest = next((tree for version in reversed(versions) for tree in _trees(package, [version], progress).trees), None)
        if newest is not None:
            _refuse_foreign(newest, packages)
    meant = _trees(package, versions, progress)
    if not meant.trees:
        raise meant.left_out[-1].error
    return meant


def _versions(package: str, specifier: SpecifierSet) -> list[Version]:
    exact = [item.version for item in specifier if item.operator in ("==", "===") and not item.version.endswith(".*")]
    if len(specifier) == len(exact) == 1 and (version := versions_in(exact[0])):
        return version  # needs no index where the wheel is cached
    limits = versions_in(",".join(item.version.removesuffix(".*") for item in specifier))
    # As PEP 440 says: a range that names a pre-release is about them, too.
    asked = versions_in(",".join(item.version for item in specifier if item.operator != "!="))
    prereleases = any(version.is_prerelease for version in asked)
    known = versions_of(package, prereleases=prereleases)
    chosen = [version for version in known if specifier.contains(version, prereleases=True)]
    if not chosen:
        near = sorted({near for limit in limits for near in neighbours(limit, known)})
        raise UnknownRelease(
            f"no release of {package} is in {specifier}",
            nearest=", ".join(map(str, near)),
            hint=f"the releases go from {known[0]} to {known[-1]}",
        )
    return chosen if len(specifier) else chosen[-1:]


def _trees(package: str, versions: Sequence[Version], progress: Progress | None) -> Meant:
    trees, left_out = [], []
    for version, found in zip(versions, fetch_each([(package, version) for version in versions], progress), strict=True):
        if isinstance(found, Path):
            trees.append(Tree(package, str(parse_wheel_filename(found.name)[1]), found))
        else:
            left_out.append(LeftOut(package, str(version), found))
    return Meant(tuple(trees), tuple(left_out))


def wheel_tree(path: Path, packages: Mapping[str, str]) -> Tree:
    """The tree of a wheel file, whatever it is called; its metadata say what it is.

    Raises:
        UnknownRelease: it is no wheel, or of a package that no patch is for.
        ReleaseUnavailable: it is damaged.
    """
    if path.suffix not in (".whl", ".zip"):
        raise UnknownRelease(f"{path} is neither a wheel nor a folder", hint=_UNPACK)
    members = [name for name in open_wheel(path).namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
    if len(members) != 1:
        raise UnknownRelease(f"{path} is no wheel: it holds no *.dist-info/METADATA", hint=_UNPACK)
    said = email.message_from_bytes(read_member(path, members[0]) or b"")
    version = said.get("Version")
    tree = Tree(_spelled(str(said.get("Name", path.stem)), packages), None if version is None else str(version), path)
    _refuse_foreign(tree, packages)
    return tree


def _spelled(name: str, packages: Mapping[str, str]) -> str:
    """A distribution's name as the patches spell it."""
    return next((package for package in packages.values() if canonical(package) == canonical(name)), name)


def _refuse_foreign(tree: Tree, packages: Mapping[str, str]) -> None:
    if tree.package not in packages.values() and not any(tree.provides(top) for top in packages):
        raise UnknownRelease(f"no selected patch is for {tree}", where=str(tree.path), hint=for_what(packages))
