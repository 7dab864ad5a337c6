"""Isolates the models of a trainer before a packed batch reaches them, whichever way they came to it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from ..decision import adopt_model
from ..errors import IsolationError
from ..runtime.call_boundaries import resolve
from ..runtime.lost_boundaries import remember
from ..runtime.markers import FLAG


def batch_prepared(trainer: Any, inputs: Any) -> None:
    """Called with each batch of a trainer that is ready for its model. One that describes documents is remembered, and the
    trainer's models are isolated or guarded.

    Raises IsolationError for a packed batch, if a model of the trainer can be neither.
    """
    call = remember(inputs)
    if call is None:
        return
    for model in models_of(trainer):
        _refuse_bypassed(_adopted(model), call)


def models_of(trainer: Any) -> Iterator[Module]:
    """The models of a trainer: its own, as it is and wrapped, references, teachers, and whatever else it keeps by a name."""
    for value in vars(trainer).values():
        if isinstance(value, Module):
            yield value


@dataclass(frozen=True)
class _Adopted:
    """A model that was isolated or guarded. `marked`: the modules of it that were. `bypassed`: why its guard would not be
    asked; empty if it would."""

    model: weakref.ref[Module]
    marked: tuple[weakref.ref[Module], ...]
    bypassed: str

    def holds_for(self, model: Module) -> bool:
        """Whether this is still that model, and nobody has restored it since."""
        if self.model() is not model:
            return False
        return all((module := each()) is not None and FLAG in module.__dict__ for each in self.marked)


# By id, since a model may compare as it likes, or not at all. A few microseconds a step for a model that was seen before.
_known: dict[int, _Adopted] = {}


def _adopted(model: Module) -> _Adopted:
    key = id(model)
    found = _known.get(key)
    if found is None or not found.holds_for(model):
        adopt_model(model)
        flags = [(module, flag) for module in model.modules() if (flag := module.__dict__.get(FLAG)) is not None]
        marked = [module for module, flag in flags if flag.role in ("backbone", "head", "guard")]
        reasons = [flag.reason for module, flag in flags if flag.role == "guard" and "forward" in module.__dict__]
        found = _Adopted(
            weakref.ref(model, lambda _: _known.pop(key, None)), tuple(map(weakref.ref, marked)), reasons[0] if reasons else ""
        )
        _known[key] = found
    return found


def _refuse_bypassed(adopted: _Adopted, call: Mapping[str, Any]) -> None:
    """A guard is asked in the forward of a class. One on the instance may have been made before, and would go past it."""
    if not adopted.bypassed:
        return
    boundaries = resolve(call, recurrent=False)
    if boundaries is not None and boundaries.packed:
        raise IsolationError(
            f"a batch of {boundaries.num_documents} documents is on its way to a model that cannot keep them apart: "
            f"{adopted.bypassed}. Train it on padded batches (packing=False)"
        )
