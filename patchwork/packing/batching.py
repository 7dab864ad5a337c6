"""How does a causal mixer run on the documents of packed rows side by side, and how do its results come back in place?

A document becomes a row of a right-padded batch. Every mixer here is causal, so the padding behind a document cannot
reach it, and the first token of a document has nothing before it: exact, without any kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from patchwork.packing.boundaries import Boundaries, IsolationError

# Chunk rules pad each document to a whole number of chunks, so lengths that agree up to a chunk cost the same.
CHUNK, SHORTEST = 64, 16
# What one more call of a mixer costs, in tokens of padding: classes of length merge while the padding this adds stays
# below it. On the CPU a call is cheap beside its arithmetic (benchmarks/mixer.py); elsewhere launches dominate.
CALL_COST = {"cpu": 64}
OTHER_CALL_COST = 2048


def padded_length(length: int) -> int:
    """What a document of this length costs, in tokens: 16, 32, or whole chunks of 64."""
    if length > CHUNK // 2:
        return -(-length // CHUNK) * CHUNK
    return SHORTEST if length <= SHORTEST else CHUNK // 2


@dataclass(frozen=True, eq=False)
class Bucket:
    """Documents that run as one batch. ``index`` (documents, padded length), int64: the token of the flattened rows
    that stands at each place; places behind a document repeat its last token, so that all values stay finite."""

    index: torch.Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """``restore`` (B * S,), int64: where each token of the rows lies in the buckets' outputs, laid end to end.

    ``in_place``: the one bucket holds the tokens in their own order, so a reshape does both ways.
    """

    buckets: tuple[Bucket, ...]
    restore: torch.Tensor
    in_place: bool


def plan(boundaries: Boundaries) -> Plan:
    """The plan for these boundaries, made once and kept with them: all layers, and a recompute, share it."""
    made: Plan | None = boundaries.__dict__.get("_plan")
    if made is None:
        made = _make(boundaries)
        boundaries.__dict__["_plan"] = made
    return made


def group(lengths: list[int], call_cost: int = CALL_COST["cpu"]) -> list[list[int]]:
    """Positions in ``lengths``, grouped into buckets of similar length, longest first."""
    classes: dict[int, list[int]] = {}
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        classes.setdefault(padded_length(lengths[number]), []).append(number)
    groups: list[list[int]] = []
    longest = added = 0
    for size, members in classes.items():
        added += (longest - size) * len(members)
        if groups and added <= call_cost:
            groups[-1] += members
        else:
            groups.append(members)
            longest, added = size, 0
    return groups


def _make(boundaries: Boundaries) -> Plan:
    lengths = [length for row in boundaries.segments for length in row]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    restore = torch.empty(len(boundaries.rows) * boundaries.row_length, dtype=torch.int64)
    buckets, offset = [], 0
    for members in group(lengths, CALL_COST.get(boundaries.device.type, OTHER_CALL_COST)):
        # In the order of the row, so that documents of one length need no gather at all.
        members.sort()
        length = torch.tensor([lengths[number] for number in members])[:, None]
        step = torch.arange(int(length.max()))
        index = starts[members][:, None] + torch.minimum(step, length - 1)
        place = offset + torch.arange(index.numel()).view_as(index)
        real = step < length
        restore[index[real]] = place[real]
        buckets.append(Bucket(index.to(boundaries.device)))
        offset += index.numel()
    in_place = len(buckets) == 1 and offset == len(restore) and bool((restore == torch.arange(offset)).all())
    return Plan(tuple(buckets), restore.to(boundaries.device), in_place)


def side_by_side(
    call: Callable[[torch.Tensor, dict[str, Any]], Any],
    boundaries: Boundaries,
    hidden: torch.Tensor,
    per_token: Mapping[str, Any] | None = None,
) -> Any:
    """Runs ``call(hidden, per_token)`` on the documents and returns its result for the rows.

    ``hidden`` (B, S, ...) and each tensor of ``per_token`` (B or 1, S, ...; also tuples of them, or None) are gathered
    together. The result may be a tensor (documents, length, ...) or a tuple of such tensors and None. Gradients flow
    exactly. Raises IsolationError if ``hidden`` is not of the shape that the boundaries describe.
    """
    batch, row_length = len(boundaries.rows), boundaries.row_length
    if hidden.shape[:2] != (batch, row_length):
        raise IsolationError(
            f"the boundaries describe {batch} x {row_length} tokens, but a mixer was called with hidden states of shape "
            f"{tuple(hidden.shape)}: something between the model and the mixer changed the row"
        )
    whole = plan(boundaries)
    flat = _flatten([hidden, dict(per_token or {})], batch, row_length)
    outputs = []
    for bucket in whole.buckets:
        gathered = _gather(flat, bucket.index, whole.in_place)
        outputs.append(call(gathered[0], gathered[1]))
    return _restore(outputs, whole, batch, row_length)


def _flatten(value: Any, batch: int, row_length: int) -> Any:
    if isinstance(value, torch.Tensor):
        if value.ndim < 2 or value.shape[1] != row_length or value.shape[0] not in (1, batch):
            raise IsolationError(
                f"an argument per token has shape {tuple(value.shape)}, expected ({batch}, {row_length}, ...): "
                "documents cannot be cut out of it"
            )
        return value.expand(batch, *value.shape[1:]).reshape(batch * row_length, *value.shape[2:])
    if isinstance(value, dict):
        return {name: _flatten(item, batch, row_length) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_flatten(item, batch, row_length) for item in value)
    return value


def _gather(value: Any, index: torch.Tensor, in_place: bool) -> Any:
    if isinstance(value, torch.Tensor):
        if not in_place:
            # index_select, not indexing: its backward pass adds rows up instead of sorting them first.
            value = value.index_select(0, index.flatten())
        return value.reshape(*index.shape, *value.shape[1:])
    if isinstance(value, dict):
        return {name: _gather(item, index, in_place) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_gather(item, index, in_place) for item in value)
    return value


def _restore(outputs: list[Any], whole: Plan, batch: int, row_length: int) -> Any:
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(_restore(list(parts), whole, batch, row_length) for parts in zip(*outputs, strict=True))
    if first is None:
        return None
    for output, bucket in zip(outputs, whole.buckets, strict=True):
        if not isinstance(output, torch.Tensor) or output.shape[:2] != bucket.index.shape:
            raise IsolationError(
                f"a mixer returned {getattr(output, 'shape', type(output).__name__)} for documents of shape "
                f"{tuple(bucket.index.shape)}: its results cannot be put back in the row"
            )
    if whole.in_place:
        return first.reshape(batch, row_length, *first.shape[2:])
    flat = torch.cat([output.flatten(0, 1) for output in outputs]) if len(outputs) > 1 else first.flatten(0, 1)
    return flat.index_select(0, whole.restore).reshape(batch, row_length, *first.shape[2:])
