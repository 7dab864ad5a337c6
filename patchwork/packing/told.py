"""Which batches said where their documents begin? So that a call that has lost it on its way is an error, not a leak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from patchwork.packing.arguments import EXPLICIT
from patchwork.packing.boundaries import IsolationError
from patchwork.packing.resolution import resolve

# Whether the batch that was told of last said something of documents. Nothing else is asked where a call is compiled.
under_way = False
_batch: tuple[TensorWeakRef, dict[str, Any]] | None = None  # its ids, for as long as they live, and what it said


def told_of(inputs: Any) -> None:
    """Remembers what a batch, ready to be handed to a model, says of its documents; it takes the place of the one before."""
    global under_way, _batch
    under_way, _batch = False, None
    if not isinstance(inputs, Mapping) or not isinstance(ids := inputs.get("input_ids"), torch.Tensor):
        return
    said = {name: value for name in (*EXPLICIT, "position_ids", "attention_mask") if (value := inputs.get(name)) is not None}
    if said.keys() - {"attention_mask"}:
        under_way, _batch = True, (TensorWeakRef(ids), said)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_forgotten(arguments: Mapping[str, Any]) -> None:
    """Called where a backbone's call describes no documents, while a batch is under way that may: raises IsolationError if
    that has several in a row, and the call is of its tokens, or of a part or a copy of them."""
    if _batch is None or (ids := _batch[0]()) is None:
        return told_of(None)
    said = _batch[1]
    if not _is_of(arguments, ids):
        return
    found = resolve({"input_ids": ids, **said}, recurrent=False)
    if found is not None and found.packed:
        raise IsolationError(
            f"the batch has {found.num_documents} documents and says so ({', '.join(said)}), but the model was called with "
            "its tokens alone, so documents would leak: hand on the whole batch, model(**inputs)"
        )


def _is_of(arguments: Mapping[str, Any], ids: torch.Tensor) -> bool:
    """Whether a call has the tokens of a batch, all or all but some at an end; embeddings are taken for theirs by their shape."""
    given = arguments.get("input_ids")
    if given is None:
        embedded = arguments.get("inputs_embeds")
        return isinstance(embedded, torch.Tensor) and embedded.ndim == 3 and embedded.shape[:2] == ids.shape
    if given is ids:
        return True
    if not isinstance(given, torch.Tensor) or given.ndim != 2 or given.shape[0] != ids.shape[0] or given.device != ids.device:
        return False
    size, missing = given.shape[1], ids.shape[1] - given.shape[1]
    if not 0 <= missing < size:  # a shorter part may be anything
        return False
    return any(torch.equal(given, ids[:, start : start + size]) for start in {0, missing})
