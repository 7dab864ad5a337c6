"""May this model be packed? Asked before the first step, of a built model, a config or a name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from patchwork.packing.families import ATTENTION_ONLY, FAMILIES, Family, released
from patchwork.packing.kernels import closed_here
from patchwork.packing.mixers import MIXERS, Mixer

# The arguments of a load that decide which config it reads.
LOADING = ("cache_dir", "code_revision", "revision", "subfolder", "token", "trust_remote_code", "local_files_only")


ATTENTION = "documents side by side, a block mask, or varlen arguments"


class PackingRefused(Exception):
    """Packing was asked for where it cannot be made exact. ``decision`` holds the reasons."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"packing is refused for {decision.model}: {'; '.join(decision.reasons)}")
        self.decision = decision


@dataclass(frozen=True)
class Decision:
    """``packing``: whether packed rows are exact. ``reasons``: why not. ``ways``: how documents are kept apart, by kind
    of layer. ``model``: what was asked about."""

    packing: bool
    reasons: tuple[str, ...] = ()
    ways: Mapping[str, str] | None = None
    model: str = ""


def decide(model: Any, args: Any = None) -> Decision:
    """Whether ``model`` (a model, a config, or a name or path as the trainer would load it) can be packed exactly.

    ``args``: the trainer's arguments; ``model_init_kwargs`` and ``trust_remote_code`` of them are used to resolve a
    name just as the load will. A config that cannot be resolved, an encoder-decoder, an unknown family or mixer is a
    refusal with its reason; nothing is raised for them. ``PATCHWORK_HYBRID_PACKING=0`` refuses models with recurrent
    mixers; it is read here, at each call.
    """
    if isinstance(model, (str, os.PathLike)):
        return _decide_name(str(model), args)
    if hasattr(model, "named_modules"):
        return _decide_model(model)
    return _decide_config(model, str(getattr(model, "_name_or_path", "") or type(model).__name__))


def _refuse(model: str, reason: str) -> Decision:
    return Decision(False, (reason,), model=model)


def _decide_name(name: str, args: Any) -> Decision:
    from transformers import AutoConfig

    given = {**(getattr(args, "model_init_kwargs", None) or {})}
    if getattr(args, "trust_remote_code", None) is not None:
        given.setdefault("trust_remote_code", args.trust_remote_code)
    loading = {key: given[key] for key in LOADING if given.get(key) is not None}
    try:
        config = AutoConfig.from_pretrained(name, **loading)
    except (OSError, ValueError, KeyError, ImportError) as error:
        return _refuse(name, f"its config cannot be resolved ({type(error).__name__}: {str(error).splitlines()[0]})")
    if loading.get("trust_remote_code") and not _of_transformers(config):
        return _decide_code(config, name, loading)
    return _decide_config(config, name)


def _of_transformers(config: Any) -> bool:
    return type(config).__module__.startswith("transformers.models.")


def _decide_code(config: Any, name: str, loading: Mapping[str, Any]) -> Decision:
    """By its structure: code that is trusted is built without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    revision = {key: loading[key] for key in ("code_revision",) if key in loading}
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=True, **revision)
    except (ImportError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        return _refuse(name, f"its own code cannot be built without weights ({type(error).__name__}: {error})")
    return replace(_decide_model(model), model=name)


def _decide_config(config: Any, name: str) -> Decision:
    from patchwork.packing.refusal import ENCODER_DECODER, NOT_DISPATCHED

    if getattr(config, "is_encoder_decoder", False):
        return _refuse(name, ENCODER_DECODER)
    if not _of_transformers(config):
        return _refuse(name, f"its code ({type(config).__module__}) is not part of transformers, so its mixers are unknown")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    folder = type(text).__module__.split(".")[2]
    family = next((each for each in FAMILIES if each.name == folder), None)
    if family is not None:
        return _decide_family(family, name)
    since = ATTENTION_ONLY.get(folder)
    if since is None:
        known = ", ".join(sorted((*(each.name for each in FAMILIES), *ATTENTION_ONLY)))
        return _refuse(name, f"the family {folder} is not known to keep documents apart (known: {known})")
    if not released(since):
        return _refuse(name, NOT_DISPATCHED.format(folder, since))
    return Decision(True, (), {"attention": ATTENTION}, name)


def _decide_family(family: Family, name: str) -> Decision:
    ways = {"attention": ATTENTION}
    if family.recurrent:
        if os.environ.get("PATCHWORK_HYBRID_PACKING") == "0":
            return _refuse(name, "it has recurrent mixers, and PATCHWORK_HYBRID_PACKING=0 keeps those on padded batches")
        ways |= {mixer.name: _way_of(mixer) for mixer in MIXERS if family.name in mixer.families and not mixer.attention}
    return Decision(True, (), ways, name)


def _way_of(mixer: Mixer) -> str:
    """Of a mixer that is not built yet: what its kernels will be is not known."""
    return f"document batching ({reason})" if (reason := closed_here(mixer)) else "native kernels, or document batching without"


def _decide_model(model: Any) -> Decision:
    from patchwork.packing.boundaries import IsolationError
    from patchwork.packing.isolation import recurrent, validate
    from patchwork.packing.refusal import ENCODER_DECODER

    name = type(model).__name__
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return _refuse(name, ENCODER_DECODER)
    try:
        parts = validate(model)
    except IsolationError as error:
        return _refuse(name, str(error))
    if recurrent(model) and os.environ.get("PATCHWORK_HYBRID_PACKING") == "0":
        return _refuse(name, "it has recurrent mixers, and PATCHWORK_HYBRID_PACKING=0 keeps those on padded batches")
    return Decision(True, (), {part.kind: part.way for part in parts}, name)


def refuse_unmarked_rows(trainer: Any, args: Any, dataset: Any, packing: bool) -> None:
    """Called where TRL's SFTTrainer prepares a dataset: raises where packed rows would not say where their documents begin.

    ``trainer.padding_free`` is whether its collator marks documents; ``packing`` whether this dataset is to be packed.
    Raises PackingRefused, before the first step.
    """
    reasons = []
    packed_before = "seq_lengths" in (getattr(dataset, "column_names", None) or ())
    if packing:
        reasons += _why_not_pack(trainer, args)
    if packed_before and packing:
        reasons.append(
            "the dataset is packed already (it has seq_lengths), and its rows would count as documents: give the documents"
        )
    elif packed_before and not trainer.padding_free:
        reasons.append(
            "the dataset is packed (it has seq_lengths), but without packing or padding_free its documents are forgotten"
        )
    if reasons:
        raise PackingRefused(Decision(False, tuple(reasons), model=type(trainer).__name__))


def _why_not_pack(trainer: Any, args: Any) -> list[str]:
    import trl
    from packaging.version import Version

    if Version(trl.__version__) < Version("0.23.1"):
        return [f"TRL {trl.__version__} does not mask labels between documents; TRL 0.23.1 and later do: upgrade"]
    if args.packing_strategy == "wrapped":
        return ["packing_strategy='wrapped' cuts documents without keeping their boundaries: use 'bfd'"]
    if not trainer.padding_free:
        return [
            f"packing_strategy={args.packing_strategy!r} with packing={args.packing} and eval_packing={args.eval_packing}: the "
            "collator would pad packed rows like single documents: pack training and evaluation alike, with 'bfd'"
        ]
    return []


def adopt_model(model: Any) -> None:
    """Isolate or guard a model that a trainer is given, all of it: it may have been built before `patchwork.apply()`."""
    from transformers import PreTrainedModel

    from patchwork.packing.isolation import adopt

    if hasattr(model, "modules"):
        for module in reversed([each for each in model.modules() if isinstance(each, PreTrainedModel)]):  # inner ones first
            adopt(module)
