"""Checks that a collator's batch describes the documents of its examples, in whatever process the batch is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..argument_names import EXPLICIT
from ..errors import IsolationError
from ..runtime.call_boundaries import resolve
from .dataset_rows import SAYING, documents_of


class Watched:
    """A collator that raises IsolationError where its batch forgets documents; else it is as the one that it wraps.

    `before`: travels with it into other processes, where unpickling it prepares the process.
    """

    def __init__(self, collator: Callable[[Any], Any], before: Any = None) -> None:
        self._collator = collator
        self._before = before

    def __call__(self, examples: Any) -> Any:
        batch = self._collator(examples)
        _refuse_forgotten(examples, batch, self._collator)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_collator"], name)

    def __reduce__(self) -> tuple[Callable[..., Watched], tuple[Any, ...]]:
        return _in_another_process, (self._before, self._collator)


def _in_another_process(before: Any, collator: Callable[[Any], Any]) -> Watched:
    return Watched(collator, before)


def _refuse_forgotten(examples: Any, batch: Any, collator: Any) -> None:
    rows = [example for example in examples if isinstance(example, Mapping)] if isinstance(examples, Sequence) else []
    lengths = [[length for length in documents_of(row) or () if length] for row in rows]
    if all(len(row) < 2 for row in lengths):
        return
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    if not isinstance(ids, torch.Tensor):
        return
    said = {name: batch[name] for name in (*EXPLICIT, "position_ids", "attention_mask") if batch.get(name) is not None}
    found = resolve({"input_ids": ids, **said}, recurrent=False)
    if found is not None and found.packed:
        return
    columns = ", ".join(name for name in SAYING if any(row.get(name) is not None for row in rows))
    raise IsolationError(
        f"the {len(rows)} rows of a batch hold {sum(map(len, lengths))} documents (by their {columns}), but "
        f"{getattr(collator, '__name__', type(collator).__name__)} says nothing of that, so documents would leak: use the "
        "trainer's own collator, or hand on position_ids or seq_idx"
    )
