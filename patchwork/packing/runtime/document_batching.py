"""Runs a causal mixer on the documents of packed rows side by side, and puts its results back in place.

A document becomes a row of a right-padded batch. Every mixer here is causal, so the padding behind a document cannot
reach it, and the first token of a document has nothing before it: exact, without any kernel.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..boundaries import Boundaries
from ..errors import IsolationError

# The torch rules of linear attention work in chunks and pad each document to whole ones. Their cost within a chunk grows
# with its length; those told of one get one of four lengths, so that compiled code is compiled for few.
CHUNK, SHORTEST = 64, 16
# All buckets together hold at most this many places for each token.
MOST_PADDING = 1.25
# What one more call of a mixer costs, in tokens, each counted twice: in its chunk, and besides. On the CPU a call is cheap
# beside its arithmetic (benchmarks/mixers.py); elsewhere launches dominate.
CALL_COST = {"cpu": 128}
OTHER_CALL_COST = 4096
WEIGHT = 16  # of a token, in whole numbers, so that it can be weighed in steps of a sixteenth


def chunk_length(length: int) -> int:
    """The chunk that suits documents of this length: 16, 32, 48 or 64 tokens, as many as fill whole chunks best."""
    chunks = -(-length // CHUNK)
    return -(-length // (chunks * SHORTEST)) * SHORTEST


def padded_length(length: int) -> int:
    """What a document of this length takes in such chunks, in tokens."""
    chunk = chunk_length(length)
    return -(-length // chunk) * chunk


@dataclass(frozen=True, eq=False)
class Plan:
    """Which documents run as one batch, and where each token goes. All index tensors are int64.

    `shapes`: (documents, longest) of each bucket. `index` (places,): the token of the flattened rows that stands at
    each place of the buckets, laid end to end; places behind a document repeat its last token, so that all values stay
    finite. `restore` (B * S,): the place of each token. `in_place`: the one bucket holds the tokens in their own
    order, so a reshape does both ways.
    """

    shapes: tuple[tuple[int, int], ...]
    index: torch.Tensor
    restore: torch.Tensor
    in_place: bool

    @property
    def sizes(self) -> list[int]:
        """The places of each bucket."""
        return [documents * longest for documents, longest in self.shapes]


def plan(boundaries: Boundaries, padded: bool = True) -> Plan:
    """The plan for these boundaries, made once and kept with them: all layers, and a recompute, share it. Not `padded`:
    each bucket holds documents of one length."""
    kept = boundaries.__dict__.setdefault("_plans", {})
    if padded not in kept:
        kept[padded] = _make(boundaries, padded)
    made: Plan = kept[padded]
    return made


# ---- which documents run together ---------------------------------------------------------------------------------


def group(lengths: list[int], call_cost: int = CALL_COST["cpu"]) -> list[list[int]]:
    """Positions in `lengths`, grouped into buckets of similar length, longest first.

    The buckets cost least by `call_cost` and padding, among those that hold at most MOST_PADDING places a token: padding
    weighs more and more until they do, and then no more than it must. Enough weight leaves no padding at all, so this ends.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    counts, most = Counter(lengths), MOST_PADDING * sum(lengths)

    def dealt(weight: int) -> list[list[int]] | None:
        ends = _cheapest(counts, call_cost, weight)
        groups = [order[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return groups if sum(len(members) * lengths[members[0]] for members in groups) <= most else None

    light = weight = WEIGHT
    while (groups := dealt(weight)) is None:
        light, weight = weight, 2 * weight
    while weight - light > light // 16:
        middle = (light + weight) // 2
        if (fewer := dealt(middle)) is None:
            light = middle
        else:
            groups, weight = fewer, middle
    return groups


def of_one_length(lengths: list[int]) -> list[list[int]]:
    """Positions in `lengths`, grouped by length, longest first."""
    return [[at for at, each in enumerate(lengths) if each == length] for length in sorted(set(lengths), reverse=True)]


def _cheapest(counts: Mapping[int, int], call_cost: int, weight: int) -> list[int]:
    """Where each bucket ends among the documents, longest first, so that all cost least.

    A document in a bucket whose longest has n tokens costs `WEIGHT * padded_length(n) + weight * n`. So the cheapest way
    to deal out the first x documents, as a function of x, is the lowest of lines: one for each place where the last bucket
    can begin, with that cost as its slope. Slopes fall and x rises, so the lines that can still be lowest form a queue.
    """
    lines: deque[_Line] = deque()
    begin = cost = 0
    begins = {}
    for length in sorted(counts, reverse=True):
        slope = WEIGHT * padded_length(length) + weight * length
        line = _Line(slope, cost + WEIGHT * call_cost - slope * begin, begin)
        while len(lines) > 1 and _never_lowest(lines[-2], lines[-1], line):
            lines.pop()
        lines.append(line)
        begin += counts[length]
        while len(lines) > 1 and lines[1].at(begin) <= lines[0].at(begin):
            lines.popleft()
        cost, begins[begin] = lines[0].at(begin), lines[0].begin
    ends = []
    while begin:
        ends.append(begin)
        begin = begins[begin]
    return ends[::-1]


class _Line(NamedTuple):
    """What the first x documents cost if the last bucket begins at `begin`."""

    slope: int
    offset: int
    begin: int

    def at(self, documents: int) -> int:
        return self.slope * documents + self.offset


def _never_lowest(before: _Line, line: _Line, after: _Line) -> bool:
    """Whether `after` passes below `before` no later than `line` does."""
    return (after.offset - before.offset) * (before.slope - line.slope) <= (line.offset - before.offset) * (
        before.slope - after.slope
    )


def _make(boundaries: Boundaries, padded: bool) -> Plan:
    lengths = [length for row in boundaries.segments for length in row]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    shapes, parts, real = [], [], []
    for members in group(lengths, CALL_COST.get(boundaries.device.type, OTHER_CALL_COST)) if padded else of_one_length(lengths):
        length = torch.tensor([lengths[number] for number in members])[:, None]
        step = torch.arange(int(length.max()))
        parts.append((starts[members][:, None] + torch.minimum(step, length - 1)).flatten())
        real.append((step < length).flatten())
        shapes.append((len(members), len(step)))
    index = torch.cat(parts)
    places = torch.cat(real).nonzero().flatten()
    restore = torch.empty_like(places)
    restore[index[places]] = places
    # Without padding all documents have one length, and sorting by length has left them in the order of the rows.
    in_place = len(shapes) == 1 and len(index) == len(restore)
    # One transfer for both.
    both = torch.cat([index, restore]).to(boundaries.device)
    return Plan(tuple(shapes), both[: len(index)], both[len(index) :], in_place)


# ---- there and back -----------------------------------------------------------------------------------------------


def side_by_side(
    call: Callable[[torch.Tensor, dict[str, Any]], Any],
    boundaries: Boundaries,
    hidden: torch.Tensor,
    per_token: Mapping[str, Any] | None = None,
    *,
    masks: Mapping[str, Any] | None = None,
    padded: bool = True,
) -> Any:
    """Runs `call(hidden, arguments)` on the documents and returns its result for the rows.

    `hidden` (B, S, ...) and each tensor of `per_token` (B or 1, S, ...; also tuples of them, or None) are gathered
    together. Of each tensor of `masks` (B or 1, heads or 1, S, S), bool or additive, a document keeps its own square,
    and never sees the padding behind it; one for a document on its own (1, heads or 1, L, L), as long as the longest, is one
    that looks back only. `arguments` holds what was gathered of both. The result may be a tensor (documents, length, ...)
    or a tuple of such tensors and None. Not `padded`: only documents of one length run together. Gradients flow exactly.
    Raises IsolationError where shapes are not those that the boundaries describe.
    """
    batch, row_length = len(boundaries.rows), boundaries.row_length
    if hidden.shape[:2] != (batch, row_length):
        raise IsolationError(
            f"the boundaries describe {batch} x {row_length} tokens, but a mixer was called with hidden states of shape "
            f"{tuple(hidden.shape)}: something between the model and the mixer changed the row"
        )
    whole = plan(boundaries, padded)
    documents = _cut(hidden, whole, batch, row_length)
    arguments = _cut(dict(per_token or {}), whole, batch, row_length)
    for name, mask in (masks or {}).items():
        for cut, square in zip(arguments, _squares(name, mask, whole, batch, row_length), strict=True):
            cut[name] = square
    outputs = [call(part, cut) for part, cut in zip(documents, arguments, strict=True)]
    return _restore(outputs, whole, batch, row_length)


def _cut(value: Any, whole: Plan, batch: int, row_length: int) -> list[Any]:
    """What each bucket gets of an argument per token."""
    if isinstance(value, torch.Tensor):
        if value.ndim < 2 or value.shape[1] != row_length or value.shape[0] not in (1, batch):
            raise IsolationError(
                f"an argument per token has shape {tuple(value.shape)}, expected ({batch}, {row_length}, ...): "
                "documents cannot be cut out of it"
            )
        flat = value.expand(batch, *value.shape[1:]).reshape(batch * row_length, *value.shape[2:])
        if whole.in_place:
            return [flat.reshape(*whole.shapes[0], *flat.shape[1:])]
        # index_select, not indexing: its backward pass adds rows up instead of sorting them first. One for all buckets,
        # since each makes a gradient of the whole row. unsafe_: a mixer may write into what it is given.
        parts = torch.unsafe_split_with_sizes(flat.index_select(0, whole.index), whole.sizes)
        return [part.reshape(*shape, *part.shape[1:]) for part, shape in zip(parts, whole.shapes, strict=True)]
    if isinstance(value, dict):
        items = [_cut(item, whole, batch, row_length) for item in value.values()]
        return [dict(zip(value, [item[at] for item in items], strict=True)) for at in range(len(whole.shapes))]
    if isinstance(value, (tuple, list)):
        items = [_cut(item, whole, batch, row_length) for item in value]
        return [type(value)(item[at] for item in items) for at in range(len(whole.shapes))]
    return [value] * len(whole.shapes)


def _squares(name: str, mask: Any, whole: Plan, batch: int, row_length: int) -> list[Any]:
    """What each bucket gets of a mask: (documents, heads or 1, length, length)."""
    if mask is None:
        return [None] * len(whole.shapes)
    shape = tuple(getattr(mask, "shape", ()))
    longest = max(length for _, length in whole.shapes)
    if len(shape) == 4 and shape[0] == 1 and shape[2:] == (longest, longest) and longest < row_length:
        return [mask[:, :, :length, :length].expand(documents, -1, -1, -1) for documents, length in whole.shapes]
    if len(shape) != 4 or shape[2:] != (row_length, row_length) or shape[0] not in (1, batch):
        raise IsolationError(
            f"{name} is a {type(mask).__name__} of shape {shape}, expected ({batch}, heads or 1, {row_length}, {row_length}): "
            "the masks of documents cannot be cut out of it"
        )
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise IsolationError(f"{name} is a mask of {mask.dtype}, neither bool nor additive: what it hides cannot be told")
    visible, hidden = (True, False) if mask.dtype is torch.bool else (0.0, torch.finfo(mask.dtype).min)
    squares = []
    for part, (documents, longest) in zip(torch.split(whole.index, whole.sizes), whole.shapes, strict=True):
        index = part.view(documents, longest)
        row, column = (index // row_length).clamp(max=shape[0] - 1), index % row_length
        square = mask[row[:, :1, None], :, column[:, :, None], column[:, None, :]].movedim(-1, 1)
        # What repeats the token before it is padding. Its own row is that of the last token, so it sees something.
        behind = torch.zeros_like(index, dtype=torch.bool)
        behind[:, 1:] = index[:, 1:] == index[:, :-1]
        square = square.masked_fill(behind[:, None, None, :], hidden)
        # A token that saw only what is not of its document (a tail does) sees itself, since softmax of nothing is nan.
        empty = (square <= hidden / 2 if square.is_floating_point() else ~square).all(-1, keepdim=True)
        itself = torch.eye(longest, dtype=torch.bool, device=index.device)
        squares.append(square.masked_fill(empty & itself, visible))
    return squares


def _restore(outputs: list[Any], whole: Plan, batch: int, row_length: int) -> Any:
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(_restore(list(parts), whole, batch, row_length) for parts in zip(*outputs, strict=True))
    if first is None:
        return None
    for output, shape in zip(outputs, whole.shapes, strict=True):
        if not isinstance(output, torch.Tensor) or output.shape[:2] != shape:
            raise IsolationError(
                f"a mixer returned {getattr(output, 'shape', type(output).__name__)} for documents of shape "
                f"{shape}: its results cannot be put back in the row"
            )
    if whole.in_place:
        return first.reshape(batch, row_length, *first.shape[2:])
    flat = torch.cat([output.flatten(0, 1) for output in outputs]) if len(outputs) > 1 else first.flatten(0, 1)
    return flat.index_select(0, whole.restore).reshape(batch, row_length, *first.shape[2:])
