"""Reads the documents that one row of a dataset describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..argument_names import EXPLICIT
from ..runtime.call_boundaries import resolve

# The columns that can say it, each a list to a row.
SAYING = ("seq_lengths", *EXPLICIT, "position_ids")
# Those that are needed to read them.
BESIDE = ("input_ids", "attention_mask")


def documents_of(example: Mapping[str, Any]) -> list[int] | None:
    """The lengths of the documents of an example, by `seq_lengths`; None where it says of no more than one.

    Without that column by `packed_seq_lengths`, `seq_idx`, `cu_seqlens`, or `position_ids` that restart, read as a model's
    call is; padding at its end, by an `attention_mask`, is one more length. Columns with one
    number a row, and position_ids that begin with the fill value of left padding, are not boundaries and are ignored.

    Raises BoundariesError and IsolationError as `resolve` does, for columns that contradict each other.
    """
    if is_listed(lengths := example.get("seq_lengths")):
        return as_list(lengths)
    said = {name: example[name] for name in (*EXPLICIT, "position_ids") if is_listed(example.get(name))}
    if "position_ids" in said and _counts(as_list(said["position_ids"])):
        del said["position_ids"]
    if not said:
        return None
    ids = example["input_ids"] if is_listed(example.get("input_ids")) else next(iter(said.values()))
    tokens = len(ids)
    call = {name: torch.as_tensor(as_list(values)) for name, values in said.items()}
    call.update({name: call[name][None] for name in ("seq_idx", "position_ids") if name in call})
    if is_listed(mask := example.get("attention_mask")):
        call["attention_mask"] = torch.as_tensor(as_list(mask))[None]
    found = resolve({"input_ids": torch.zeros(1, tokens, dtype=torch.long), **call}, recurrent=False)
    if found is None or not found.packed:
        return None
    tail = tokens - sum(found.rows[0])
    return [*found.rows[0], *([tail] if tail else [])]


def holds_several(example: Mapping[str, Any]) -> bool:
    """Whether an example says that it holds more than one document; documents without a token do not count.

    Raises as `documents_of` does.
    """
    return sum(1 for length in documents_of(example) or () if length) > 1


def is_listed(values: Any) -> bool:
    """Whether a value is one row of several: a list, or an array or tensor of one dimension."""
    if hasattr(values, "ndim"):
        return bool(values.ndim == 1)
    return isinstance(values, Sequence) and not isinstance(values, str) and not any(isinstance(each, Sequence) for each in values)


def as_list(values: Any) -> list[Any]:
    """A row as a list, from a list, an array or a tensor."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _counts(positions: list[int]) -> bool:
    """Whether position ids count up one by one, after the fill value of left padding if there is some: one document."""
    first = positions.index(0) if positions and positions[0] != 0 and 0 in positions else 0
    filled = len(set(positions[:first])) <= 1
    return filled and all(after == before + 1 for before, after in zip(positions[first:], positions[first + 1 :], strict=False))
