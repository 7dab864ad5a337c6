"""Decides whether a model can be packed exactly: before the first step, of a built model, a config or a name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import Unresolved
from .models.adapters import acting_reason
from .models.by_name import architecture_of, failures, first_line, of_transformers, resolved
from .models.dispatch import flash
from .models.families import ATTENTION_ONLY, FAMILIES, Family, family_of, released
from .models.kernels import closed_here
from .models.mixers import MIXERS, Mixer
from .settings import hybrid_packing

SWITCHED_OFF = "it has recurrent mixers, and PATCHWORK_HYBRID_PACKING=0 keeps those on padded batches"
NOT_TOLD = "with attn_implementation={!r} its calls do not say where documents begin: use 'sdpa'"
WEIGHTS = "its config asks for attention weights (output_attentions), which documents side by side do not have"
ONE_SCORE = "{} gives one answer for a whole row, however many documents it holds"
ATTENTION = "documents side by side, a block mask, or varlen arguments"


class PackingRefused(Exception):
    """Packing was asked for where it cannot be made exact. `decision` holds the reasons."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"packing is refused for {decision.model}: {'; '.join(decision.reasons)}")
        self.decision = decision


@dataclass(frozen=True)
class Decision:
    """Whether a model can be packed exactly, and why not.

    Attributes:
        packing: whether packed rows are exact.
        reasons: why not; duplicates are dropped.
        ways: how documents are kept apart, by kind of layer.
        model: the model's name.
    """

    packing: bool
    reasons: tuple[str, ...] = ()
    ways: Mapping[str, str] | None = None
    model: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reasons", tuple(dict.fromkeys(self.reasons)))


def decide(model: Any, args: Any = None) -> Decision:
    """Whether `model` (a model, a config, or a name or path as the trainer would load it) can be packed exactly.

    `args`: the trainer's arguments; a name is resolved just as the load will (patchwork.packing.models.by_name), with the
    config that `model_init_kwargs` makes of it. A config that cannot be resolved, an encoder-decoder, an unknown family or
    mixer, an adapter that acts now and does not work on each token alone, or a head that scores whole rows, is a refusal with
    its reason; nothing is raised. `PATCHWORK_HYBRID_PACKING=0` refuses models with recurrent mixers; it is read at each call.
    """
    if isinstance(model, (str, os.PathLike)):
        return _decide_name(os.fspath(model), args)
    if hasattr(model, "named_modules"):
        return _decide_model(model)
    return _decide_config(model, str(getattr(model, "_name_or_path", "") or type(model).__name__))


def _refuse(model: str, reason: str) -> Decision:
    return Decision(False, (reason,), model=model)


def _decide_name(name: str, args: Any) -> Decision:
    try:
        config, kind = resolved(name, args)
    except Unresolved as error:
        return _refuse(name, str(error))
    return _decide_config(config, name) if kind is None else _decide_code(kind, config, name)


def _decide_code(kind: Any, config: Any, name: str) -> Decision:
    """By its structure: code that is none of transformers is built without weights."""
    import torch

    try:
        with torch.device("meta"):
            model = kind._from_config(config)
    except failures() as error:
        return _refuse(name, f"its own code cannot be built without weights ({type(error).__name__}: {first_line(error)})")
    return replace(_decide_model(model), model=name)


def _decide_config(config: Any, name: str) -> Decision:
    from .models.refusal_reasons import ENCODER_DECODER, NOT_DISPATCHED

    if getattr(config, "is_encoder_decoder", False):
        return _refuse(name, ENCODER_DECODER)
    if not of_transformers(config):
        return _refuse(name, f"its code ({type(config).__module__}) is not part of transformers, so its mixers are unknown")
    if one_score(architecture := architecture_of(config)):
        return _refuse(name, ONE_SCORE.format(architecture))
    try:
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError as error:  # several text parts
        return _refuse(name, first_line(error))
    if getattr(text, "is_encoder_decoder", False):
        return _refuse(name, ENCODER_DECODER)
    if not of_transformers(text):
        return _refuse(name, f"its text part ({type(text).__module__}) is not part of transformers, so its mixers are unknown")
    if getattr(text, "output_attentions", False):
        return _refuse(name, WEIGHTS)
    folder = type(text).__module__.split(".")[2]
    family = next((each for each in FAMILIES if each.name == folder), None)
    if family is not None:
        return _decide_family(family, text, name)
    since = ATTENTION_ONLY.get(folder)
    if since is None:
        near = difflib.get_close_matches(folder, [*(each.name for each in FAMILIES), *ATTENTION_ONLY], 3, 0.5)
        nearest = f"; the nearest known ones: {', '.join(near)}" if near else ""
        return _refuse(name, f"the family {folder} is not known to keep documents apart{nearest}")
    if not released(since):
        return _refuse(name, NOT_DISPATCHED.format(folder, since))
    return Decision(True, (), {"attention": ATTENTION}, name)


def _decide_family(family: Family, config: Any, name: str) -> Decision:
    ways = {"attention": ATTENTION}
    if _flash_where_it_is_not_told(family, config):
        return _refuse(name, NOT_TOLD.format(config._attn_implementation))
    if family.recurrent:
        if not hybrid_packing():
            return _refuse(name, SWITCHED_OFF)
        ways |= {mixer.name: _way_of(mixer) for mixer in MIXERS if family.name == mixer.family and not mixer.attention}
    return Decision(True, (), ways, name)


def _way_of(mixer: Mixer) -> str:
    """Of a mixer that is not built yet: what its kernels will be is not known."""
    return f"document batching ({reason})" if (reason := closed_here(mixer)) else "native kernels, or document batching without"


def _flash_where_it_is_not_told(family: Family, config: Any) -> bool:
    return not family.flash and flash(str(getattr(config, "_attn_implementation", None)))


def _decide_model(model: Any) -> Decision:
    from .errors import IsolationError
    from .isolation import validate
    from .models.refusal_reasons import ENCODER_DECODER

    name = type(model).__name__
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return _refuse(name, ENCODER_DECODER)
    if (reason := acting_reason(model)) is not None:
        return _refuse(name, reason)
    for module in model.modules():
        if one_score(type(module).__name__):
            return _refuse(name, ONE_SCORE.format(type(module).__name__))
    try:
        parts = validate(model)
    except IsolationError as error:
        return _refuse(name, str(error))
    for backbone in (model.get_submodule(part.module) for part in parts if part.role == "backbone"):
        family = family_of(type(backbone))
        if getattr(backbone.config, "output_attentions", False):
            return _refuse(name, WEIGHTS)
        if family is not None and _flash_where_it_is_not_told(family, backbone.config):
            return _refuse(name, NOT_TOLD.format(backbone.config._attn_implementation))
    if not hybrid_packing() and _recurs(model, parts):
        return _refuse(name, SWITCHED_OFF)
    return Decision(True, (), {part.kind: part.way for part in parts}, name)


def _recurs(model: Any, parts: tuple[Any, ...]) -> bool:
    """Whether it keeps state along the row, by its family, or by the shape of a mixer of unlisted code."""
    from .isolation import recurrent
    from .models.unknown_code import recurrent_entry

    return recurrent(model) or any(
        recurrent_entry(model.get_submodule(part.module)) is not None for part in parts if part.role == "mixer"
    )


def one_score(kind: str) -> bool:
    """Whether a class of that name gives one answer for a whole row."""
    return kind.endswith(("ForSequenceClassification", "ForMultipleChoice"))


def adopt_model(model: Any) -> None:
    """Isolate or guard a model that a trainer is given, all of it: it may have been built before `patchwork.apply()`."""
    from transformers import PreTrainedModel

    from .isolation import adopt

    if hasattr(model, "modules"):
        for module in reversed([each for each in model.modules() if isinstance(each, PreTrainedModel)]):  # inner ones first
            adopt(module)
