"""Remembers what the batches of a trainer's step say of their documents: a call that has lost it raises, and does not leak."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeGuard, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import TensorWeakRef

from ..argument_names import EXPLICIT
from ..boundaries import Boundaries
from ..errors import IsolationError
from .call_boundaries import resolve

Result = TypeVar("Result")

# Copies of fewer tokens may agree with a part of a batch by chance.
_SHORT = 8
# The cosine from which an embedding counts as that of a token: noise is added to some, and some are scaled.
_CLOSE = 0.9


class _Batch:
    """What one batch says of its documents. `ids` is a weak reference: nothing is compared once the batch is gone."""

    def __init__(self, ids: torch.Tensor, description: dict[str, Any]) -> None:
        self.ids, self.description = TensorWeakRef(ids), description

    @cached_property
    def boundaries(self) -> Boundaries | None:
        """The boundaries, if some row holds several documents. Read when a call is compared, since that waits for the device."""
        found = resolve({"input_ids": self.ids(), **self.description}, recurrent=False)
        return found if found is not None and found.packed else None

    def crosses(self, start: int, size: int) -> bool:
        """Whether a part of the batch, its rows laid end to end, holds tokens of more than one document."""
        if self.boundaries is None:
            return False
        end = start + size
        for number, row in enumerate(self.boundaries.rows):
            place = number * self.boundaries.row_length
            for length in row:
                if start < place < end:
                    return True
                place += length
        return False


class _Step(threading.local):
    """The step of a trainer that this thread is in, and its batches; steps nest where a loss or a callback trains or evaluates.

    `described`: whether a batch describes documents. Compiled code reads nothing else, and guards on it. The values are set
    here, not on the class, since such a guard looks for them in the instance.
    """

    def __init__(self) -> None:
        self.entered = False
        self.batches: tuple[_Batch, ...] = ()
        self.described = False


STEP = _Step()


def in_step(method: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """What a method of a trainer returns for one batch. What the batch says of its documents is forgotten when it ends."""
    outer = STEP.entered, STEP.batches, STEP.described
    STEP.entered, STEP.batches, STEP.described = True, (), False
    try:
        return method(*args, **kwargs)
    finally:
        STEP.entered, STEP.batches, STEP.described = outer


def remember(inputs: Any) -> dict[str, Any] | None:
    """The tokens of a batch that is ready for a model, with what it says of its documents; None if it describes none.

    That is kept until the step ends; outside of a step, where a loop of one's own prepares a batch, until the next batch.
    """
    if not STEP.entered:
        forget()
    if not isinstance(inputs, Mapping) or not isinstance(ids := inputs.get("input_ids"), torch.Tensor):
        return None
    description = {
        name: value for name in (*EXPLICIT, "position_ids", "attention_mask") if (value := inputs.get(name)) is not None
    }
    if description.keys() <= {"attention_mask"}:
        return None
    STEP.batches, STEP.described = (*STEP.batches, _Batch(ids, description)), True
    return {"input_ids": ids, **description}


def forget() -> None:
    """Forgets the batches of this thread's step."""
    STEP.batches, STEP.described = (), False


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_lost(backbone: Any, arguments: Mapping[str, Any]) -> None:
    """Called where a backbone's call describes no documents, while a batch of the step does. Raises IsolationError if the call
    has tokens of that batch across a document's border: all of them, a part, a copy, or their embeddings.

    A call with one of its documents is a call of its own, and so is one with tokens of another text.
    """
    for batch in STEP.batches:
        if (ids := batch.ids()) is None:
            continue
        size, rows = _places(backbone, arguments, ids)
        if any(_leaks(batch, places, size) for places in rows):
            assert batch.boundaries is not None
            raise IsolationError(
                f"the batch has {batch.boundaries.num_documents} documents and says so ({', '.join(batch.description)}), but the "
                "model was called with its tokens alone, so documents would leak: hand on the whole batch, model(**inputs)"
            )


def _leaks(batch: _Batch, places: Iterable[int], size: int) -> bool:
    """Whether a row of a call, found at some places of a batch, has documents side by side wherever it may come from."""
    found = False
    for start in places:
        if not batch.crosses(start, size):
            return False
        found = True
    return found


def _places(backbone: Any, arguments: Mapping[str, Any], ids: torch.Tensor) -> tuple[int, list[Iterable[int]]]:
    """The length of a call's rows, and for each row where in the batch, its rows laid end to end, it may come from."""
    given, embedded = arguments.get("input_ids"), arguments.get("inputs_embeds")
    if given is ids:
        return ids.shape[1], [[number * ids.shape[1]] for number in range(ids.shape[0])]
    if ids.ndim != 2:
        return 0, []
    if _comparable(given, 2):
        return given.shape[1], _places_of_tokens(given, ids)
    if given is None and _comparable(embedded, 3) and embedded.shape[0] == ids.shape[0]:
        return embedded.shape[1], _places_of_embeddings(backbone, embedded, ids)
    return 0, []


def _comparable(tensor: Any, dimensions: int) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of so many dimensions that has values."""
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, FakeTensor):
        return False
    return tensor.ndim == dimensions and tensor.numel() > 0 and tensor.device.type != "meta"


def _places_of_tokens(given: torch.Tensor, ids: torch.Tensor) -> list[Iterable[int]]:
    if _is_view(given, ids):
        first = int(given.storage_offset()) - int(ids.storage_offset())
        return [[first + number * given.stride(0)] for number in range(given.shape[0])]
    if given.shape[1] < min(_SHORT, ids.shape[1] - 1):
        return []
    flat = ids.flatten()
    return [_matches(row, flat) for row in given.to(ids)]


def _is_view(given: torch.Tensor, ids: torch.Tensor) -> bool:
    """Whether the rows of a tensor are parts of the memory of another's: then their places are known, whatever their values."""
    same = given.device == ids.device and given.dtype == ids.dtype
    whole = ids.is_contiguous() and (given.stride(1) == 1 or given.shape[1] == 1)
    return same and whole and given.untyped_storage().data_ptr() == ids.untyped_storage().data_ptr()


def _matches(row: torch.Tensor, flat: torch.Tensor) -> Iterable[int]:
    """Where a row's tokens are among others."""
    size = row.shape[0]
    if size <= flat.shape[0]:
        ends = (flat[: flat.shape[0] - size + 1] == row[0]) & (flat[size - 1 :] == row[-1])
        for start in ends.nonzero().flatten().tolist():
            if torch.equal(flat[start : start + size], row):
                yield start


def _places_of_embeddings(backbone: Any, embedded: torch.Tensor, ids: torch.Tensor) -> list[Iterable[int]]:
    """Where rows of embeddings may come from: the start of a batch's row, or its end. Where the table cannot be read, shapes
    decide: a whole row, or one token less."""
    size, length = embedded.shape[1], ids.shape[1]
    if not min(_SHORT, length - 1) <= size <= length:
        return []
    starts = sorted({0, length - size})
    table = _table(backbone, embedded, ids)
    if table is None:
        return [[number * length + start for start in starts] for number in range(ids.shape[0])] if size >= length - 1 else []
    return [
        [number * length + start for start in starts if _close(embedded[number], table, row[start : start + size])]
        for number, row in enumerate(ids)
    ]


def _table(backbone: Any, embedded: torch.Tensor, ids: torch.Tensor) -> torch.Tensor | None:
    """The table of embeddings of a backbone; None where it is not all there (sharded, offloaded), or none is known."""
    try:
        weight = getattr(backbone.get_input_embeddings(), "weight", None)
    except (AttributeError, NotImplementedError):
        return None
    if not _comparable(weight, 2) or not weight.is_floating_point() or hasattr(weight, "full_tensor"):
        return None
    if weight.shape[1] != embedded.shape[2]:
        return None
    return weight if weight.shape[0] > int(ids.max()) else None


def _close(embedded: torch.Tensor, table: torch.Tensor, ids: torch.Tensor) -> bool:
    """Whether most embeddings of a row are those of these tokens. Not all: images may have taken the place of some."""
    expected = table.detach()[ids.to(table.device)].to(embedded)
    return bool((torch.cosine_similarity(embedded.detach(), expected, dim=-1) > _CLOSE).float().mean() >= 0.5)
