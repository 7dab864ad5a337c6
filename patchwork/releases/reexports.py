"""Finds the module of a release that defines a class or function which another module merely hands on."""

from __future__ import annotations

import re

from ..engine.environment.installed import ModuleSource
from .trees import Tree, read_member

# By top-level module and name, the file that it was found in last: it seldom moves from one release to the next.
_last: dict[tuple[str, str], str] = {}


def home_of(source: ModuleSource, qualname: str, tree: Tree) -> str:
    """The module that defines the first name of `qualname`; "" where `source` does so itself, does not know it, or none does.

    Raises:
        ReleaseUnavailable: a file cannot be read.
    """
    name, top = qualname.partition(".")[0], source.name.partition(".")[0]
    defined = re.compile(rb"^(?:class|def|async def) %s\b" % name.encode(), re.MULTILINE)
    known = re.compile(rb"\b%s\b|^from .* import \*" % name.encode(), re.MULTILINE)
    if defined.search(source.data) or not known.search(source.data):
        return ""
    members = [member for member in tree.names(top) if member.endswith(".py")]
    members.sort(key=lambda member: (member != _last.get((top, name)), member.count("/"), member))
    found = next((member for member in members if defined.search(read_member(tree.path, member) or b"")), "")
    if found:
        _last[top, name] = found
    return found.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
