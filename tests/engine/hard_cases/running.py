"""Runs a tool on an input: written to a folder, imported, changed and looked at, in this process."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import inspect
import pickle
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import patchwork
from patchwork import Patch

from .doctor import doctor
from .row import Change, Input, Refused

RIGHT, LOUD, WRONG = "right", "loud", "wrong"


@dataclass(frozen=True)
class Verdict:
    """`kind`: right, loud (an error, nothing half done) or wrong. `error`: what the tool raised. `seen`: what `use` gave then."""

    kind: str
    seen: object = None
    error: BaseException | None = None

    def __str__(self) -> str:
        first = str(self.error).partition("\n")[0]
        told = "" if self.error is None else f"; {type(self.error).__name__}: {first}"
        return f"{self.kind}: saw {self.seen!r}{told}"


class Patchwork:
    """patchwork as its users call it."""

    name = "patchwork"

    def apply(self, changes: Iterable[Change]) -> object:
        return patchwork.apply(*_patches(changes))

    def revert(self, changes: Iterable[Change]) -> object:
        return patchwork.revert()


def _patches(changes: Iterable[Change]) -> list[Patch]:
    return [
        Patch(name=f"own.{number}", target=f"{item.module}:{item.qualname}", edits=item.edits)  # type: ignore[arg-type]
        for number, item in enumerate(changes)
    ]


class Nothing:
    """No tool at all: what the input gives as it is."""

    name = "nothing"

    def apply(self, changes: Iterable[Change]) -> object:
        return None

    def revert(self, changes: Iterable[Change]) -> object:
        return None


def run(item: Input, engine: object, root: Path, *, imported: bool = True) -> Verdict:
    """Carry an input out below `root`, which must be on `sys.path`; `imported`: whether before the change or after it.

    The caller sees to it that no module of the input is imported yet, and takes the patches out afterwards.
    """
    item.write(root)
    importlib.invalidate_caches()
    kept: object = None
    if imported:
        modules = _import(item)
        kept = _look(item.before or "None", modules, None)
    error: Exception | None = None
    try:
        item.act(engine, item.changes)  # type: ignore[arg-type]
    except Exception as caught:  # whatever a tool raises is its refusal
        error = caught
    try:
        seen = _look(item.use, _import(item), kept)
    except Exception as caught:
        seen = f"{type(caught).__name__}: {caught}"
    return _judge(item, seen, error)


def _import(item: Input) -> dict[str, types.ModuleType]:
    modules = {"core": importlib.import_module(item.module)} if item.module else {}
    return {**modules, **{name.rpartition(".")[2]: importlib.import_module(name) for name in item.load}}


def _look(expression: str, modules: dict[str, types.ModuleType], kept: object) -> object:
    tools = (asyncio, functools, gc, importlib, inspect, pickle, sys)
    names: dict[str, object] = {module.__name__: module for module in tools}
    own = vars(modules["core"]) if "core" in modules else {}
    return eval(expression, {**names, "doctor": doctor, **own, **modules, "kept": kept})


def _judge(item: Input, seen: object, error: Exception | None) -> Verdict:
    if error is None:
        return Verdict(RIGHT if seen in (item.patched, *item.also) else WRONG, seen)
    if seen == item.stock:
        return Verdict(RIGHT if isinstance(item.patched, Refused) else LOUD, seen, error)
    return Verdict(LOUD if seen == item.patched else WRONG, seen, error)
