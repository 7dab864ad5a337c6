"""Finds the wanted packages in a folder, with their versions: site-packages, a checkout, or a package's own folder."""

from __future__ import annotations

import ast
import email
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ..engine.errors import ReleaseUnavailable, SourceUnavailable, UnknownRelease
from ..engine.text import Source, decode
from .trees import Tree, canonical, has_module, read_member


def folder_trees(folder: Path, packages: Mapping[str, str]) -> list[Tree]:
    """A tree for each distribution of `packages` (by top-level module) of which the folder holds modules.

    Raises:
        UnknownRelease: it holds none.
        ReleaseUnavailable: it cannot be read, or a package is installed there as editable: its files are elsewhere.
    """
    try:
        held = sorted(os.listdir(folder))
    except OSError as error:
        raise ReleaseUnavailable(f"the folder cannot be read: {error}", where=str(folder)) from None
    own = folder.resolve()
    if own.name in packages and (own / "__init__.py").is_file():
        return _trees(own.parent, {own.name: packages[own.name]})
    found = _trees(folder, packages)
    missing = {top: name for top, name in packages.items() if not any(top in tree.tops for tree in found)}
    if missing and (folder / "src").is_dir():
        found += _trees(folder / "src", missing)
    if not found:
        raise UnknownRelease(
            f"{folder} holds none of the packages that patches are for" if held else f"{folder} is empty",
            nearest=", ".join(name for name in held if not name.startswith("."))[:100],
            hint=f"give site-packages, a source tree (flat or with src/) or the package's own folder; {for_what(packages)}",
        )
    return found


def for_what(packages: Mapping[str, str]) -> str:
    """The packages that the patches in question are for, in words."""
    names = sorted({top if canonical(top) == canonical(name) else f"{name} ({top})" for top, name in packages.items()})
    return f"the patches selected are for {', '.join(names)}"


def _trees(root: Path, packages: Mapping[str, str]) -> list[Tree]:
    tops: dict[str, list[str]] = {}
    for top, name in packages.items():
        if has_module(root, top):
            tops.setdefault(name, []).append(top)
        elif _installed(root, name):
            raise ReleaseUnavailable(
                f"{name} is installed there without its files, probably as editable",
                where=str(root),
                hint=f"give the folder that its files are in, or select patches of other packages than {name}",
            )
    return [Tree(name, _version(root, name, found), root, tuple(found)) for name, found in tops.items()]


def _version(root: Path, name: str, tops: list[str]) -> str | None:
    """What metadata beside the package say, else its own `__version__`, else the project file; None where nothing does."""
    installed = _installed(root, name)
    if len(installed) == 1:
        return installed[0]
    literal = next(filter(None, (_literal(root, top) for top in tops)), None)
    return literal or _project(root) or (_project(root.parent) if root.name == "src" else None)


def _installed(root: Path, name: str) -> list[str]:
    """The versions of a distribution that the metadata in a folder tell of; an update cut short leaves two."""
    found = []
    for folder in root.glob("*.dist-info"):
        if canonical(folder.name.partition("-")[0]) == canonical(name) and (data := read_member(folder, "METADATA")):
            found.append(str(email.message_from_bytes(data).get("Version", "")))
    return [version for version in found if version]


def _literal(root: Path, top: str) -> str | None:
    data = read_member(root, f"{top}/__init__.py") or read_member(root, f"{top}.py")
    try:
        tree = Source(decode(data or b"")[0]).tree
    except SourceUnavailable:
        return None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        named = any(isinstance(target, ast.Name) and target.id == "__version__" for target in targets)
        if named and isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return None


def _project(root: Path) -> str | None:
    """`project.version` of pyproject.toml, read by hand: Python 3.10 has no tomllib."""
    text = (read_member(root, "pyproject.toml") or b"").decode("utf-8", "replace")
    table = re.search(r"^\[project\]\s*$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    version = re.search(r"""^version\s*=\s*["']([^"']+)["']""", table[1], re.MULTILINE) if table else None
    return version[1] if version else None
