"""Which batches said where their documents begin? So that a call that has lost it on its way is an error, not a leak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from patchwork.packing.arguments import EXPLICIT
from patchwork.packing.boundaries import IsolationError
from patchwork.packing.resolution import resolve

# By the batch's own tensor of ids, for as long as it lives: what the batch said of it.
_TOLD: Any = WeakTensorKeyDictionary()


def told_of(inputs: Mapping[str, Any]) -> None:
    """Remembers what a batch, ready to be handed to a model, says of its documents."""
    said = {name: value for name in (*EXPLICIT, "position_ids") if (value := inputs.get(name)) is not None}
    if said and isinstance(ids := inputs.get("input_ids"), torch.Tensor):
        _TOLD[ids] = said


def refuse_forgotten(arguments: Mapping[str, Any]) -> None:
    """Called where a backbone's call describes no documents: raises IsolationError if the batch of its ids did, and had
    several in a row."""
    ids = arguments.get("input_ids")
    if torch.compiler.is_compiling() or not isinstance(ids, torch.Tensor) or (said := _TOLD.get(ids)) is None:
        return
    found = resolve({"input_ids": ids, **said}, recurrent=False)
    if found is not None and found.packed:
        raise IsolationError(
            f"the batch has {found.num_documents} documents and says so ({', '.join(said)}), but the model was called with its "
            "input_ids alone, so documents would leak: hand on the whole batch, model(**inputs)"
        )
