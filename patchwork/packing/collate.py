"""What a collator adds to a packed batch so that it says where its documents begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .boundaries import Boundaries

if TYPE_CHECKING:
    import torch


def boundary_arguments(examples: Sequence[Mapping[str, Any]], position_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Boundary arguments of a batch that was flattened into one row.

    Args:
        examples: the collator's input. Each has `input_ids`; `seq_lengths` lists the documents of a packed example, and an
            example without it is one document.
        position_ids: int64 `(1, T)`, already padded: T may exceed the documents by one tail.

    Returns:
        `seq_idx`, int32 `(1, T)`: which document each token is of, the tail numbered last. Not cumulative lengths: they have no
        batch dimension, and accelerate slices every tensor of a dispatched batch along its first.

    Raises:
        BoundariesError: lengths that do not fit the tokens; nothing is guessed.
    """
    lengths: list[int] = []
    for example in examples:
        lengths.extend(example.get("seq_lengths") or [len(example["input_ids"])])
    boundaries = Boundaries.from_seq_lens(lengths, total=position_ids.shape[1], device=position_ids.device)
    return {"seq_idx": boundaries.seq_idx}
