"""The functions that are patched now, and what they were before."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass

from .process_state import of_process


@dataclass(frozen=True)
class State:
    """What a swap changes of a function."""

    code: types.CodeType
    kwdefaults: Mapping[str, object] | None

    @classmethod
    def of(cls, function: types.FunctionType) -> State:
        return cls(function.__code__, function.__kwdefaults__)

    def put(self, function: types.FunctionType) -> None:
        function.__code__ = self.code
        function.__kwdefaults__ = None if self.kwdefaults is None else dict(self.kwdefaults)


@dataclass(frozen=True)
class Patched:
    """What a function was before, and the code it was given."""

    before: State
    code: types.CodeType


# The one record of which functions are patched now.
originals = of_process("originals", dict[types.FunctionType, Patched]())


def original_code(function: types.FunctionType) -> types.CodeType:
    """The code a function had before any patch, if it runs a patch's code now; else the code it runs."""
    patched = originals.get(function)
    return patched.before.code if patched is not None and function.__code__ is patched.code else function.__code__


def sharing(function: types.FunctionType) -> list[types.FunctionType]:
    """The functions patched before that run the code of this one: a reloader gives it to those that it replaces."""
    return [item for item in originals if item.__code__ is function.__code__ and item is not function]
