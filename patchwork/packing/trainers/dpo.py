"""Leaves the padding out in a trainer of padded pairs, TRL's DPOTrainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from ..decision import Decision, adopt_model, decide
from ..runtime.unpadding import unpadded
from .sft import of_parallelism, refused


def padding_free(args: Any, *models: Any) -> bool:
    """Whether a DPOTrainer with these arguments computes its models without padding; None among `models` is left out.

    A refusal is one PackingWarning and means padded batches, or PackingRefused under `PATCHWORK_ON_REFUSAL=raise`.
    """
    if not args.padding_free:
        return False
    decisions = [decide(model, args) for model in _given(models)]
    reasons = list(dict.fromkeys(reason for decision in decisions for reason in decision.reasons))
    reasons += of_parallelism(args)
    if reasons:
        refused(args, Decision(False, tuple(reasons), model=decisions[0].model), "DPOTrainer")
    return not reasons


def prepare(trainer: Any, on: bool, *models: Any) -> None:
    """Notes whether the losses of a trainer leave padding out; its models may have been built before `patchwork.apply()`."""
    for model in _given(models):
        adopt_model(model)
    trainer._patchwork_unpads = on


def without_padding(trainer: Any, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a method of a trainer returns. While it runs, and no longer, the trainer's models compute without padding, if that
    is what it was asked for."""
    on = getattr(trainer, "_patchwork_unpads", False)
    with unpadded(*_given((trainer.model, trainer.ref_model))) if on else nullcontext():
        return compute(*args, **kwargs)


def flattens(trainer: Any, args: Any, *models: Any) -> bool:
    """Whether a DPOTrainer of TRL 0.22 to 0.28 is to flatten its batches by itself: where its loss of a flat row is right.

    Where it is not, the backbones leave the padding out instead, and the trainer sees padded batches.
    """
    free = padding_free(args, *models)
    flat = free and not _needs_rows(args) and not _sees(models[0])
    prepare(trainer, free and not flat, *models)
    return flat


def _given(models: Iterable[Any]) -> list[Any]:
    """The models without None. A model is not asked for its truth value: torch's compiled wrapper has none, and a model whose
    `__len__` gives 0 is a model, too."""
    return [model for model in models if model is not None]


def _needs_rows(args: Any) -> bool:
    """Whether a loss counts over the rows of a batch (lengths, chosen half, places of logits), which a flat row has not."""
    losses = [args.loss_type] if isinstance(args.loss_type, str) else args.loss_type
    switches = ("use_liger_loss", "use_liger_kernel", "use_weighting", "use_logits_to_keep")
    numbers = ("ld_alpha", "rpo_alpha")
    return (
        bool({"ipo", "sft"}.intersection(losses))
        or any(getattr(args, name, False) for name in switches)
        or any(getattr(args, name, None) is not None for name in numbers)
    )


def _sees(model: Any) -> bool:
    """Whether a model takes more than text: positions of images are not those that a flat row says."""
    return model.config.get_text_config() is not model.config
