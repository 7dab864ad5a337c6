"""Finds the copy of a package that is used, and its version. The first metadata on the path may be another copy's."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import url2pathname


@dataclass(frozen=True)
class Copies:
    """The copy of a package that is used, and the others that are there.

    Attributes:
        version: of the copy that is used; None where neither metadata nor its own source tells.
        others: further copies, as `name version in folder`.
    """

    version: str | None
    others: tuple[str, ...]


def copies(distribution: str, origin: str | None) -> Copies:
    """The copies of a distribution on the path.

    Args:
        distribution: its name.
        origin: the file that the package is loaded from, or None where there is none.
    """
    version: str | None = None
    others = []
    used = set()
    for found in importlib.metadata.distributions(name=distribution):
        folder = os.path.realpath(str(found.locate_file("")))
        if folder in used:
            continue  # a folder stands on the path twice
        used.add(folder)
        if version is None and origin is not None and _holds(found, folder, origin):
            version = found.version
        else:
            others.append(f"{distribution} {found.version} in {folder}")
    return Copies(version or _written_in(origin), tuple(others))


def _holds(found: importlib.metadata.Distribution, folder: str, origin: str) -> bool:
    """Whether the distribution is the one whose package lies at `origin`: beside it, or an editable install of its folder."""
    file = os.path.realpath(origin)
    package = os.path.dirname(file) if os.path.basename(file).startswith("__init__.") else file
    if os.path.dirname(package) == folder:
        return True
    with suppress(ValueError, KeyError, TypeError):
        url = json.loads(found.read_text("direct_url.json") or "")
        checkout = url2pathname(urlsplit(url["url"]).path) if url["dir_info"]["editable"] else None
        return checkout is not None and file.startswith(os.path.join(os.path.realpath(checkout), ""))
    return False


def _written_in(origin: str | None) -> str | None:
    """The `__version__` that the package's first file gives as a plain string."""
    if origin is None or not origin.endswith(".py"):
        return None
    try:
        with open(origin, "rb") as stream:
            tree = ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError):
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__version__" in [getattr(target, "id", "") for target in node.targets]:
            return str(node.value.value) if isinstance(node.value, ast.Constant) else None
    return None
