"""Loads the code of a source file from its .pyc if that provably belongs to the source, otherwise compiles the source."""

from __future__ import annotations

import ast
import importlib.util
import marshal
import os
import types

from ..environment.installed import ModuleSource
from ..text import compiled

_HEADER = 16
_RACY_SECONDS = 2


def code_on_disk(source: ModuleSource, tree: ast.Module) -> types.CodeType:
    """The code of a whole module; `tree` is its source parsed. Reading a .pyc takes a twentieth of the time of compiling."""
    code = _held(source) if source.cached else None
    return compiled(tree, source.path) if code is None else code


def _held(source: ModuleSource) -> types.CodeType | None:
    """The code in the module's .pyc; None if there is none, it is damaged, or it may be of another state of the source."""
    try:
        with open(source.cached, "rb") as stream:
            data, written = stream.read(), os.fstat(stream.fileno()).st_mtime
        changed = int(os.stat(source.path).st_mtime)
    except OSError:
        return None
    if data[:4] != importlib.util.MAGIC_NUMBER or len(data) < _HEADER:
        return None
    if data[4:8] == bytes(4):
        # A source written twice within a second has the .pyc of its first text, which Python itself takes for valid.
        racy = written < changed + _RACY_SECONDS
        valid = not racy and data[8:_HEADER] == _word(changed) + _word(len(source.data))
    else:
        valid = data[8:_HEADER] == importlib.util.source_hash(source.data)
    if not valid:
        return None
    try:
        code = marshal.loads(memoryview(data)[_HEADER:])
    except (EOFError, TypeError, ValueError):
        return None
    return code if isinstance(code, types.CodeType) else None


def _word(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")
