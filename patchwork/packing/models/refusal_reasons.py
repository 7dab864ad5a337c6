"""Finds the reason why packed rows of a model cannot be kept apart, for its user."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from .families import ATTENTION_ONLY, folder_of
from .known_code import attends, mixes, own_attention, parameters_of
from .mixers import mixer_of

_CHOOSING = re.compile(r"Indexer|Compressor|DogeAttention")
_ATTENTION = re.compile(r"Attention|Attn")
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
        parameters = parameters_of(type(module))
        if "input_ids" not in parameters or "position_ids" in parameters:
            continue
        for name, child in module.named_children():
            if _POSITIONS.search(name) and hasattr(child, "weight"):
                return f"{type(child).__name__} {name}"
    return None


def closed(backbone: Any) -> list[str]:
    """The parts whose code cannot be read and may mix tokens along the row, by path. A scripted one goes by the names that it
    and its parts had; a builtin that holds parts by nothing. Those inside a listed mixer belong to it."""
    return [
        f"{path} ({_name_of(module)})"
        for path, module in backbone.named_modules()
        if _may_mix(module) and not _in_mixer(backbone, path)
    ]


def _in_mixer(backbone: Any, path: str) -> bool:
    names = path.split(".")
    around = (mixer_of(type(backbone.get_submodule(".".join(names[:depth])))) for depth in range(1, len(names)))
    return any(entry is not None and not entry.attention for entry in around)


def _may_mix(module: Any) -> bool:
    kind, name = type(module), _name_of(module)
    if not isinstance(module, torch.jit.ScriptModule):
        builtin = not inspect.isfunction(getattr(kind, "forward", None)) and not parameters_of(kind)
        return builtin and next(module.children(), None) is not None
    if _ATTENTION.search(name) and any(_name_of(part) == "Linear" for part in module.modules()):
        return True
    return mixes(getattr(torch.nn, name, None) or type(name, (), {}))


def _name_of(module: Any) -> str:
    """The name of its class, of a scripted one that of the class that was scripted."""
    return str(getattr(module, "original_name", type(module).__name__))
