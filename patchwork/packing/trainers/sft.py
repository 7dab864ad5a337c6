"""What a trainer that is to pack is asked before its data is prepared, and again before its loss."""

from __future__ import annotations

import copy
import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..decision import Decision, PackingRefused, decide
from ..errors import PackingWarning, Unresolved
from ..models.adapters import config_reason
from ..models.by_name import resolved
from ..settings import raises_on_refusal
from .dataset_packing import columns_of, is_list, packed_row, with_cuts_counted
from .dataset_rows import BESIDE, documents_of

_SWITCHES = ("packing", "eval_packing", "padding_free")
_STARTS = ("position_ids", "seq_idx")
_PICTURES = ("image", "images", "video", "videos", "audio", "audios", "pixel_values")


def guarded(trainer: Any, given: Mapping[str, Any]) -> Any:
    """The arguments that a trainer goes on with: those given, or where packing is refused a copy that does not pack.

    `given`: what its `__init__` was called with, by name. A refusal is one PackingWarning with its reasons, or PackingRefused
    under `PATCHWORK_ON_REFUSAL=raise`. The user's own arguments are not changed.

    Raises ValueError for a dataset without rows, and for another value of `PATCHWORK_ON_REFUSAL`.
    """
    args, model = given["args"], given["model"]
    if not asks_to_pack(args):
        streams = [_columns(part) for part in _parts(given) if not hasattr(part, "__len__")]
        packed_stream = any(columns is not None and "seq_lengths" in columns for columns in streams)
        return _undispatched(args) if packed_stream else args
    dataset: Any = given.get("train_dataset")
    if hasattr(dataset, "__len__") and len(dataset) == 0:
        raise ValueError("train_dataset is empty: there is nothing to pack")
    decision = decide(model, args)
    reasons = (*decision.reasons, *_of_setup(args, given), *_of_dataset(args, given))
    if reasons:
        return refused(args, Decision(False, reasons, model=decision.model), type(trainer).__name__)
    return args if all(hasattr(part, "__len__") for part in _parts(given)) else _undispatched(args)


def _undispatched(args: Any) -> Any:
    """A copy of `args` under which each process reads its own rows of a stream: a row of documents cannot be shared out."""
    if hasattr(args, "accelerator_config"):
        args = copy.copy(args)
        args.accelerator_config = copy.copy(args.accelerator_config)
        args.accelerator_config.dispatch_batches = False
    return args


def confirmed(trainer: Any, args: Any, model: Any, given: Any) -> Any:
    """`args`, once a model that was `given` by name is built: what was decided by its name is asked again of the model."""
    if not isinstance(given, str) or not asks_to_pack(args):
        return args
    decision = decide(model, args)
    return args if decision.packing else refused(args, decision, type(trainer).__name__)


def asks_to_pack(args: Any) -> bool:
    """Whether some rows of a trainer with these arguments are to hold several documents."""
    return any(getattr(args, name, None) for name in _SWITCHES)


def refused(args: Any, decision: Decision, trainer: str) -> Any:
    """A copy of `args` that does not pack, after one PackingWarning; PackingRefused under `PATCHWORK_ON_REFUSAL=raise`."""
    if raises_on_refusal():
        raise PackingRefused(decision)
    asked = ", ".join(f"{name}={getattr(args, name)}" for name in _SWITCHES if getattr(args, name, None))
    warnings.warn(
        f"{trainer}({asked}): {PackingRefused(decision)}. It goes on without packing, on padded batches unless "
        "its collator makes others. PATCHWORK_ON_REFUSAL=raise makes this an error",
        PackingWarning,
        stacklevel=4,
    )
    args = copy.copy(args)
    args._patchwork_padded = True
    for name in _SWITCHES:
        if getattr(args, name, None):
            setattr(args, name, False)
    return args


def refuse(trainer: Any, reason: str) -> NoReturn:
    """Raises PackingRefused where a trainer cannot go on without packing either."""
    raise PackingRefused(Decision(False, (reason,), model=type(trainer).__name__))


def before_truncation(args: Any, dataset: Any, packing: bool) -> Any:
    """A tokenized dataset on its way to be truncated; what is lost of one that was to be packed is counted."""
    return dataset if packing or not hasattr(args, "_patchwork_padded") else with_cuts_counted(dataset, args.max_length)


def _of_setup(args: Any, given: Mapping[str, Any]) -> list[str]:
    """What stands beside the model and would bypass its boundaries."""
    reasons = []
    if given.get("data_collator") is not None:
        reasons.append(
            f"the data collator ({type(given['data_collator']).__name__}) is not SFTTrainer's own: it may lose boundaries"
        )
    if (reason := config_reason(given.get("peft_config"))) is not None:
        reasons.append(reason)
    return reasons + of_parallelism(args)


def of_parallelism(args: Any) -> list[str]:
    """Why packed rows cannot be shared out as these arguments, or accelerate's environment, want it."""
    reasons = []
    parallelism = getattr(args, "parallelism_config", None)
    for name, what in (("cp_size", "context"), ("sp_size", "sequence")):
        size = getattr(parallelism, name, None) or int(os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}") or 1)
        if size > 1:
            reasons.append(f"{what} parallelism ({name}={size}) cuts rows anywhere, and no state or mask goes across the cut")
    return reasons


def _of_dataset(args: Any, given: Mapping[str, Any]) -> list[str]:
    for part in _parts(given):
        if (_columns(part) is not None or _multimodal(given["model"], args)) and has_pictures(part):
            return ["the dataset has pictures or sound beside its text, and these have no place in a packed row"]
    return []


def _parts(given: Mapping[str, Any]) -> list[Any]:
    """The datasets of a trainer, those of evaluation too."""
    found = [given[name] for name in ("train_dataset", "eval_dataset") if given.get(name) is not None]
    return [part for each in found for part in (each.values() if isinstance(each, Mapping) else [each])]


def has_pictures(dataset: Any) -> bool:
    """Whether the rows of a dataset hold more than text. A stream that does not know its columns is asked for one example."""
    columns = _columns(dataset)
    if columns is None:
        columns = next(iter(dataset), {})
    return any(name in columns for name in _PICTURES)


def _columns(dataset: Any) -> Any:
    return getattr(dataset, "column_names", None)


def _multimodal(model: Any, args: Any) -> bool:
    config: Any = getattr(model, "config", None)
    if isinstance(model, str):
        try:
            config, _ = resolved(model, args)
        except Unresolved:  # a reason of its own, which decide() gives
            return False
    return hasattr(config, "get_text_config") and config.get_text_config() is not config


def text_side(processing_class: Any, args: Any, dataset: Any) -> Any:
    """The tokenizer of a processor whose trainer is to pack text: TRL before 1.0 cannot prepare text with a processor."""
    tokenizer = getattr(processing_class, "tokenizer", None)
    if tokenizer is None or not asks_to_pack(args) or has_pictures(dataset):
        return processing_class
    if getattr(tokenizer, "chat_template", None) is None:
        tokenizer.chat_template = getattr(processing_class, "chat_template", None)
    return tokenizer


def to_pack(trainer: Any, dataset: Any, packing: bool) -> tuple[Any, bool]:
    """A dataset, and whether it is to be packed now: one that is packed already (it has `seq_lengths`) stays as it is.

    Raises PackingRefused for one whose rows say otherwise that they hold several documents: SFTTrainer drops those columns.
    A stream raises it where it gives such a row, for the first at once.
    """
    if is_packed(dataset):
        return dataset, False
    columns = columns_of(dataset)
    if names := [name for name in _STARTS if is_list(dataset, name, columns)]:
        refuse_row = functools.partial(_refuse_row, names, type(trainer).__name__)
        if not hasattr(dataset, "__len__"):
            refuse_row(next(iter(dataset), {}))
            return dataset.map(refuse_row, features=getattr(dataset, "features", None)), packing
        refuse_row(packed_row(dataset, names) or {})
    return dataset, packing


def is_packed(dataset: Any) -> bool:
    """Whether the rows of a dataset have `seq_lengths`."""
    return is_list(dataset, "seq_lengths", columns_of(dataset))


def _refuse_row(names: Sequence[str], trainer: str, row: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: row[name] for name in (*names, *BESIDE) if name in row}
    if documents_of(said) is not None:
        reason = (
            f"rows hold several documents, by their {' and '.join(names)}, which SFTTrainer drops: give the lengths of the "
            "documents as seq_lengths; or, where they are padding, an attention_mask"
        )
        raise PackingRefused(Decision(False, (reason,), model=trainer))
    return {}


def counted(trainer: Any, inputs: Mapping[str, Any], num_items_in_batch: Any) -> Any:
    """The denominator of a loss, at least 1: a batch in which no label counts has loss 0, not 0 / 0.

    Raises PackingRefused for a packed row under torch's DataParallel, which deals out rows, and there is one.
    """
    if "seq_idx" in inputs and trainer.args.n_gpu > 1:
        reason = (
            f"DataParallel over {trainer.args.n_gpu} GPUs cannot share one packed row: start with torchrun or accelerate launch"
        )
        refuse(trainer, reason)
    if num_items_in_batch is None:
        labels = inputs.get("labels")
        return num_items_in_batch if labels is None or bool((labels[..., 1:] != -100).any()) else 1
    return num_items_in_batch.clamp(min=1) if hasattr(num_items_in_batch, "clamp") else max(num_items_in_batch, 1)
