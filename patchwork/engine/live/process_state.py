"""Keeps the record of what is patched with the process, so that it outlives this import of patchwork.

Module purgers delete patchwork from sys.modules and import it anew, reloaders run its files again; the functions stay patched.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any, TypeVar

T = TypeVar("T")


def of_process(name: str, value: T) -> T:
    """The object that the first import of patchwork in this process kept under `name`; `value` where this is the first."""
    kept: T = vars(sys).setdefault("_patchwork", {}).setdefault(name, value)
    return kept


def as_ours(value: object) -> Any:
    """`value` itself, or the same made of this import's classes if it is of those of an earlier import of patchwork."""
    if isinstance(value, tuple | list):
        return type(value)(as_ours(item) for item in value)
    kind = type(value)
    if not dataclasses.is_dataclass(kind) or not kind.__module__.startswith("patchwork.engine."):
        return value
    ours = getattr(importlib.import_module(kind.__module__), kind.__qualname__)
    if ours is kind:
        return value
    return ours(**{field.name: as_ours(getattr(value, field.name)) for field in dataclasses.fields(kind)})
