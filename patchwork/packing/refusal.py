"""Why can packed rows of a model not be kept apart? The reason that its user is told, from what the model is."""

from __future__ import annotations

import inspect
import re
from typing import Any

from patchwork.packing.anatomy import attends, own_attention
from patchwork.packing.families import ATTENTION_ONLY, folder_of

_CHOOSING = re.compile(r"Indexer|Compressor|DogeAttention")
_POSITIONS = re.compile(r"wpe|pos\w*_?embed|embed_positions|position_embeddings")
ENCODER_DECODER = "an encoder-decoder: a packed row has no boundaries in its cross-attention"
NOT_DISPATCHED = "in this release attention of {} does not go through transformers' registry, from {} on it does"
BOTH_WAYS = "a bidirectional encoder: its attention looks ahead, so it is no causal language model"


def why_not(model: Any) -> str:
    """Why a model that is of no known family, or not in this release, is refused."""
    name, config = type(model).__name__, getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return f"{name} is {ENCODER_DECODER}"
    if looks_ahead(model):
        return f"{name} is {BOTH_WAYS}"
    if (table := _fixed_positions(model)) is not None:
        return f"the positions of {name} ({table}) count from the start of the row and cannot restart at a document"
    if (since := ATTENTION_ONLY.get(folder_of(type(model)))) is not None:
        return NOT_DISPATCHED.format(name, since)
    inside = [type(module).__name__ for module in model.modules()]
    for reason, kinds in (
        ("chooses tokens of the whole row by itself", [kind for kind in inside if _CHOOSING.search(kind)]),
        ("does not go through transformers' registry", [type(each).__name__ for each in model.modules() if own_attention(each)]),
    ):
        if kinds:
            return f"attention of {name} ({kinds[0]}) {reason}, so it cannot be told of documents"
    return f"{name} is of no family whose documents are known to stay apart in a packed row"


def looks_ahead(model: Any) -> bool:
    """Whether some self-attention of its text layers is not causal."""
    kinds = [module for module in model.modules() if attends(module)]
    if not kinds:  # of its own code
        return any(getattr(module, "is_decoder", None) is False for module in model.modules())
    return all(getattr(module, "is_causal", True) is False for module in kinds)


def _fixed_positions(model: Any) -> str | None:
    """The table of learned positions of a model whose call takes none; None if there is none."""
    for module in model.modules():
        parameters = inspect.signature(type(module).forward).parameters
        if "input_ids" not in parameters or "position_ids" in parameters:
            continue
        for name, child in module.named_children():
            if _POSITIONS.search(name) and hasattr(child, "weight"):
                return f"{type(child).__name__} {name}"
    return None
