"""Decides in unsloth_zoo's `sft_prepare_dataset` whether to pack, whether to truncate before, and what packs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from ..decision import Decision
from ..errors import PackingWarning
from .dataset_packing import keeping, packer_for_training, truncates
from .sft import refuse, refused

_FORGOTTEN = "the dataset is packed already (it has seq_lengths), and {}"


def preparation(
    trainer: Any, args: Any, columns: Collection[str], packing: bool, max_length: int | None, pack_dataset: Any
) -> tuple[bool, bool, Any]:
    """Whether to pack a dataset, whether to cut its documents to `max_length` when they are tokenized, and what packs them:
    `pack_dataset` as a trainer calls it, whose rows have `seq_lengths` with each strategy.

    With a strategy that truncates, documents are cut as without packing; what another does is left to TRL's packer.
    Without a `pack_dataset` that takes the strategy nothing is packed, after one PackingWarning, or PackingRefused under
    `PATCHWORK_ON_REFUSAL=raise`.

    Args:
        columns: of the dataset as it was given.
        max_length: tokens in a row.
        pack_dataset: TRL's, or None where there is none.

    Raises:
        ValueError: packing without `max_length`.
        PackingRefused: the dataset is packed already, and its documents would be forgotten.
    """
    if "seq_lengths" in columns:
        if packing:
            refuse(trainer, _FORGOTTEN.format("its rows would count as documents: give the documents"))
        if not getattr(trainer, "padding_free", False):
            refuse(trainer, _FORGOTTEN.format("without packing or padding_free its documents are forgotten"))
    if not packing:
        return False, max_length != 0, pack_dataset
    if max_length is None:
        raise ValueError("packing needs max_length, the tokens in a row: it is None")
    strategy = getattr(args, "packing_strategy", "bfd")
    if not _takes(pack_dataset, strategy):
        reason = (
            f"this TRL has no pack_dataset that is known to take packing_strategy={strategy!r}: TRL 0.22.2 and later have one"
        )
        refused(args, Decision(False, (reason,), model=type(trainer).__name__), type(trainer).__name__)
        return False, max_length != 0, pack_dataset
    return True, truncates(strategy), packer_for_training(pack_dataset)


def with_full_documents_told(packed: Any, max_length: int, truncated: bool) -> Any:
    """A packed dataset; where its documents were cut before (`truncated`), after a PackingWarning that counts what may be cut.

    The tokenizer has done it, so a document of `max_length` tokens may have been longer. Of a stream it is said batch by batch.
    """
    from datasets import Dataset

    if not truncated:
        return packed
    if not isinstance(packed, Dataset):
        return packed.map(_tell_full, batched=True, fn_kwargs={"max_length": max_length})
    _tell_full({"seq_lengths": packed["seq_lengths"]}, max_length)
    return packed


def _tell_full(batch: Mapping[str, Any], max_length: int) -> dict[str, Any]:
    lengths = [length for row in batch["seq_lengths"] for length in row]
    if full := lengths.count(max_length):
        warnings.warn(
            f"{full} of {len(lengths)} documents have max_length={max_length} tokens: unsloth_zoo cut those that were "
            f"longer. To keep them whole, raise max_length, or use packing_strategy={keeping()!r}",
            PackingWarning,
            stacklevel=3,
        )
    return {}


def _takes(pack_dataset: Any, strategy: Any) -> bool:
    """Whether a call as unsloth_zoo makes it, all by position, gives the packer this strategy, as far as its signature tells."""
    try:
        given = inspect.signature(pack_dataset).bind(None, 0, strategy, {})
    except (TypeError, ValueError):  # no callable, none that tells its parameters, or one that takes fewer
        return False
    return "strategy" in given.arguments
