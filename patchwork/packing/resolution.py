"""Is a call of a backbone packed, and with which boundaries? Read from its arguments, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from patchwork.packing.arguments import CACHES, EXPLICIT, LIMITS
from patchwork.packing.boundaries import Boundaries, BoundariesError, IsolationError

# Not in torch 2.6, where an export without fake tensors cannot be told from a compile.
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def describes_nothing(arguments: Mapping[str, Any]) -> bool:
    """Whether a call is ordinary by its shapes alone. Reads no tensor, so it can be traced by torch.compile.

    An export runs on shapes, so nothing can be read and nothing leaks; positions pass for ordinary ones then, since all
    exports have them. Explicit boundaries would be lost in the program that comes out of it, so they raise IsolationError.
    """
    described = [name for name in EXPLICIT if not _empty(arguments.get(name))]
    if is_exporting():
        if described:
            raise IsolationError(
                f"a packed call ({', '.join(described)}) cannot be exported: the exported program would not keep its "
                "documents apart; export the model on ordinary rows"
            )
        return True
    positions = arguments.get("position_ids")
    restartable = isinstance(positions, torch.Tensor) and positions.shape[-1] > 1
    return not restartable and not described


@torch.compiler.disable  # type: ignore[untyped-decorator]
def resolve(arguments: Mapping[str, Any], recurrent: bool = True) -> Boundaries | None:
    """The boundaries that a call carries, or None for an ordinary call, which is to be left untouched.

    ``arguments`` are those of a backbone by name: ``input_ids`` or ``inputs_embeds`` (B, S, ...), ``position_ids``,
    ``attention_mask``, the explicit descriptions and the cache. ``recurrent``: whether the model has mixers that a
    prepared attention mask does not reach. A call with explicit boundaries of one document does carry boundaries.
    An ordinary call whose positions count up one by one costs one read from the device, and none without positions.

    Raises BoundariesError for a description that cannot be right, IsolationError for two that contradict each other, for
    packed rows whose padding is not last, and for packed rows with a cache.
    """
    tokens = _tokens(arguments)
    if tokens is None or _shapes_only(arguments):
        return None
    explicit = {name: value for name in EXPLICIT if not _empty(value := arguments.get(name))}
    positions = _Positions(arguments.get("position_ids"), tokens)
    cache = _Cache(arguments)
    if not cache.in_use:
        positions.check_fit()
    if not explicit and not positions.may_restart():
        return None
    if (cache.paged and not recurrent) or (cache.in_use and tokens.row_length == 1):
        return None
    mask = arguments.get("attention_mask")
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.ndim == 2):
        if recurrent:
            _check_prepared_mask(explicit, positions, cache)
        elif explicit:
            raise IsolationError(
                f"{_names(explicit)} came with a prepared attention mask, and which documents that keeps apart is not known: "
                "leave attention_mask out of packed calls"
            )
        return None
    kept = _kept(mask, tokens, cache)
    described = _agreed(explicit, tokens) if explicit else None
    if cache.in_use:
        if _packed(described, positions, kept):
            raise IsolationError(
                f"packed rows ({_names(explicit) or 'position_ids'}) came with {cache.name}, which holds tokens already: they "
                "cannot continue a cache, whose state is that of one document; call without a cache"
            )
        return None
    valid = _valid_lengths(kept, tokens)
    if valid is None:
        if _packed(described, positions, kept):
            raise IsolationError(
                f"attention_mask has zeros before the end of a row, {_names(explicit) or 'position_ids'} describe packed "
                "documents: packed rows must have their padding last; drop the mask, or move the padding to the end"
            )
        return None
    if described is None:
        found = positions.boundaries(valid)
    else:
        found = positions.confirm(described, explicit)
        _check_mask(found, valid, explicit)
        _check_limits(found, arguments)
        _check_labels(found, arguments.get("labels"), explicit)
    if cache.name is not None and found is not None and found.packed:
        raise IsolationError(
            f"packed rows came with a cache ({cache.name}), as generate() passes one: it would stay empty, and decoding would "
            "go on without context; call without past_key_values and with use_cache=False, or generate from padded rows"
        )
    if found is not None:  # read here, where nothing is traced: compiled code then knows tensors, not the lengths of one row
        _ = found.packed, found.seq_idx, found.position_ids
    return found


class _Tokens:
    """Shape and place of the tokens of a call."""

    def __init__(self, batch: int, row_length: int, device: torch.device) -> None:
        self.batch, self.row_length, self.device = batch, row_length, device


def _tokens(arguments: Mapping[str, Any]) -> _Tokens | None:
    for name, dimensions in (("input_ids", (2, 3)), ("inputs_embeds", (3,))):  # three: several streams of tokens (B, S, streams)
        value = arguments.get(name)
        if isinstance(value, torch.Tensor) and value.ndim in dimensions:
            return _Tokens(value.shape[0], value.shape[1], value.device)
    return None


def _empty(value: Any) -> bool:
    return value is None or (value.numel() == 0 if isinstance(value, torch.Tensor) else len(value) == 0)


def _names(explicit: Mapping[str, Any]) -> str:
    return ", ".join(explicit)


def _shapes_only(arguments: Mapping[str, Any]) -> bool:
    """Whether the tokens have no values: then the call computes shapes, and what has no values leaks none. A description
    without values of tokens that have them is an error."""
    tokens = [value for name in ("input_ids", "inputs_embeds") if isinstance(value := arguments.get(name), torch.Tensor)]
    described = {name: arguments.get(name) for name in ("position_ids", "attention_mask", *EXPLICIT)}
    empty = [name for name, value in described.items() if isinstance(value, torch.Tensor) and _valueless(value)]
    if any(map(_valueless, tokens)):
        return True
    if empty and not isinstance(described[empty[0]], FakeTensor):
        raise BoundariesError(
            f"{', '.join(empty)} is on the meta device and has no values, the tokens are on {tokens[0].device}: make it there"
        )
    return bool(empty)


def _valueless(value: torch.Tensor) -> bool:
    return isinstance(value, FakeTensor) or value.device.type == "meta"


def _packed(described: Boundaries | None, positions: _Positions, kept: torch.Tensor | None) -> bool:
    return (described is not None and described.packed) or positions.restart(kept)


class _Cache:
    """The cache that a call was handed. ``name``: of its argument, None without one. ``past``: tokens it holds.

    ``in_use``: whether it holds any; one that cannot say how full it is counts as in use. ``paged``: the cache of
    continuous batching, whose own boundaries keep rows apart.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        given = [(name, cache) for name in CACHES if (cache := arguments.get(name)) is not None]
        self.name = given[0][0] if given else None
        self.paged = any(type(cache).__name__ == "PagedAttentionCache" for _, cache in given)
        lengths = [_length(cache) for _, cache in given]
        self.in_use = any(length != 0 for length in lengths)
        self.past = max((length for length in lengths if length is not None), default=0)


def _length(cache: Any) -> int | None:
    ask = getattr(cache, "get_seq_length", None)
    try:
        return None if ask is None else int(ask())
    except ValueError:  # a cache of nothing but recurrent states counts no tokens
        return None


def _kept(mask: torch.Tensor | None, tokens: _Tokens, cache: _Cache) -> torch.Tensor | None:
    """(B, S) on the CPU: which tokens of this call the mask keeps; None for all. A mask may cover the cache too."""
    if mask is None:
        return None
    start = cache.past if mask.shape[1] >= cache.past + tokens.row_length else mask.shape[1] - tokens.row_length
    if start < 0 or mask.shape[0] not in (1, tokens.batch):
        return None
    kept = (mask[:, start : start + tokens.row_length] != 0).cpu()
    return kept.expand(tokens.batch, -1)


def _valid_lengths(kept: torch.Tensor | None, tokens: _Tokens) -> list[int] | None:
    """Tokens before the masked tail of each row; None if there are zeros elsewhere."""
    if kept is None:
        return [tokens.row_length] * tokens.batch
    lengths = kept.sum(dim=1)
    if bool((kept != (torch.arange(tokens.row_length) < lengths[:, None])).any()):
        return None
    return [int(length) for length in lengths.tolist()]


class _Positions:
    """What the position ids of a call say about documents."""

    def __init__(self, value: Any, tokens: _Tokens) -> None:
        self.tokens = tokens
        self.planes: torch.Tensor | None = None  # three-plane MRoPE ids: they do not say where documents start
        self.text: torch.Tensor | None = None
        self.misfit: torch.Tensor | None = None  # ids for another number of tokens
        if not isinstance(value, torch.Tensor):
            return
        if value.ndim == 1:
            value = value[None]
        if value.ndim == 3 and value.shape[0] == 4:
            value = value[0]
        if value.ndim == 2 and value.shape[1] == tokens.row_length and value.shape[0] in (1, tokens.batch):
            self.text = value.expand(tokens.batch, -1)
        elif value.ndim == 3 and value.shape[0] == 3 and value.shape[-1] == tokens.row_length:
            self.planes = value.expand(3, tokens.batch, -1)
        else:
            self.misfit = value

    def _changes(self) -> torch.Tensor | None:
        """(B, S-1): where a document may start."""
        if self.text is not None:
            return self.text.diff(dim=1) != 1
        if self.planes is not None:
            return (self.planes.diff(dim=2) < 0).all(dim=0)
        return None

    def may_restart(self) -> bool:
        changes = None if self.tokens.row_length < 2 else self._changes()
        return changes is not None and bool(changes.any())

    def check_fit(self) -> None:
        """Raises BoundariesError for ids that restart, but are not one for each token."""
        if self.misfit is not None and self.misfit.shape[-1] > 1 and bool((self.misfit.diff(dim=-1) != 1).any()):
            raise BoundariesError(
                f"position_ids of shape {tuple(self.misfit.shape)} restart like those of a packed row, but the tokens are "
                f"{(self.tokens.batch, self.tokens.row_length)}: give one position per token"
            )

    def restart(self, kept: torch.Tensor | None) -> bool:
        """Whether some row's positions fall or repeat among the tokens that ``kept`` (B, S) leaves: padding has any ids.

        A gap alone, as a mask in the middle of one document leaves it, is no restart. Image patches repeat and jump in
        single planes, so only a fall of all three counts there.
        """
        ids = self.text[None] if self.text is not None else self.planes
        if ids is None:
            return False
        ids = ids.cpu()
        for row in range(self.tokens.batch):
            steps = (ids[:, row] if kept is None else ids[:, row, kept[row]]).diff(dim=1)
            if bool((steps <= 0 if self.text is not None else steps < 0).all(dim=0).any()):
                return True
        return False

    def left_padded(self) -> bool:
        """Whether the ids do not count at all at first (one fill value), and from there on count to the end of the row."""
        changes = self._changes()
        return changes is not None and not bool((changes[:, 1:] & ~changes[:, :-1]).any())

    def boundaries(self, valid: list[int]) -> Boundaries | None:
        """The documents that the ids alone describe; None where they restart inside the masked tail only."""
        changes = self._changes()
        if changes is None:
            return None
        starts = [
            [start + 1 for start in row.nonzero().flatten().tolist() if start + 1 < length]
            for row, length in zip(changes.cpu(), valid, strict=True)
        ]
        if not any(starts):
            return None
        if self.planes is not None:
            raise IsolationError(
                "all three planes of position_ids jump back together, as in a packed row, but MRoPE ids do not say "
                "where documents start: give seq_idx or cu_seq_lens_q, or position_ids with a text plane (4, B, S)"
            )
        rows = []
        for row, length in zip(starts, valid, strict=True):
            edges = [0, *row, *([length] if length else [])]
            rows.append(tuple(after - before for before, after in pairwise(edges)))
        return Boundaries(tuple(rows), self.tokens.row_length, self.tokens.device)

    def confirm(self, boundaries: Boundaries, explicit: Mapping[str, Any]) -> Boundaries:
        """``boundaries``, if the ids agree with them. A last segment whose ids are all 0 is a padding tail."""
        if self.text is None:
            return boundaries
        ids = self.text.cpu()
        rows = []
        for number, (documents, row) in enumerate(zip(boundaries.rows, ids, strict=True)):
            end = sum(documents)
            last = documents[-1] if documents else 0
            if last > 1 and end == boundaries.row_length and not bool(row[end - last :].any()):
                documents, end = documents[:-1], end - last
            starts = [start for start in (row.diff() != 1).nonzero().flatten().add(1).tolist() if start < end]
            edges = [0]
            for length in documents:
                edges.append(edges[-1] + length)
            tail = row[sum(documents) :].diff()
            cut = len(tail) > 0 and not bool((tail == tail[0]).all())
            if starts != edges[1:-1] or cut:
                raise IsolationError(
                    f"position_ids and {_names(explicit)} contradict each other in row {number}: position_ids start "
                    f"documents at tokens {[0, *starts][:8]}, {_names(explicit)} at {edges[:-1][:8]}: "
                    "make both restart at the same tokens, or leave one of them out"
                )
            rows.append(documents)
        return Boundaries(tuple(rows), boundaries.row_length, boundaries.device)


def _check_prepared_mask(explicit: Mapping[str, Any], positions: _Positions, cache: _Cache) -> None:
    """A 4-D mask, or one for each kind of layer, is the caller's own; it cannot reach a recurrent mixer.

    Generation with a static cache prepares its masks too, and left-pads: it hands in a cache, and ids that restart.
    """
    if not explicit and cache.name is not None:
        restart = not positions.left_padded() and (positions.restart(None) if cache.in_use else positions.may_restart())
    else:
        restart = positions.may_restart()
    if explicit or (positions.text is not None and restart):
        raise IsolationError(
            f"a packed row ({_names(explicit) or 'position_ids'}) came with a prepared attention mask, which this "
            "model's recurrent mixers cannot see: leave attention_mask out of packed calls"
        )


def _agreed(explicit: Mapping[str, Any], tokens: _Tokens) -> Boundaries:
    """The one set of boundaries that all explicit arguments describe."""
    known: dict[str, Boundaries] = {}
    total = tokens.batch * tokens.row_length
    for name, value in explicit.items():
        if name == "seq_idx":
            made = Boundaries.from_seq_idx(value, device=tokens.device)
            if (len(made.rows), made.row_length) != (tokens.batch, tokens.row_length):
                raise BoundariesError(
                    f"seq_idx has shape {(len(made.rows), made.row_length)}, the tokens "
                    f"{(tokens.batch, tokens.row_length)}: give one number per token"
                )
        elif name == "packed_seq_lengths":
            made = Boundaries.from_packed_seq_lengths(value, tokens.batch, tokens.row_length, device=tokens.device)
        else:
            made = Boundaries.from_cu_seqlens(value, total, tokens.row_length, device=tokens.device)
        known[name] = made
    first_name, best = next(iter(known.items()))
    for name, made in known.items():
        merged = _merge(best, made)
        if merged is None:
            raise IsolationError(
                f"{first_name} and {name} contradict each other: documents of {list(best.lengths)[:8]} tokens "
                f"against {list(made.lengths)[:8]}: build both from the same lengths"
            )
        best = merged
    return best


def _merge(one: Boundaries, other: Boundaries) -> Boundaries | None:
    """Two descriptions that differ at most in whether, and how finely, they number the padding tail."""
    if one.segments == other.segments or one.rows == other.rows:
        return min(one, other, key=lambda made: made.num_documents)
    for short, long in ((one, other), (other, one)):
        if all(
            mine == theirs or (sum(mine) < short.row_length and theirs[: len(mine)] == mine and _padding(theirs[len(mine) :]))
            for mine, theirs in zip(short.rows, long.segments, strict=True)
        ):
            return short
    return None


def _padding(segments: tuple[int, ...]) -> bool:
    """Whether a tail may be numbered so: as one, or each token as one. Documents behind lengths that were cut are not."""
    return len(segments) == 1 or set(segments) == {1}


def _check_mask(boundaries: Boundaries, valid: list[int], explicit: Mapping[str, Any]) -> None:
    for number, (documents, length) in enumerate(zip(boundaries.rows, valid, strict=True)):
        if length >= sum(documents):
            continue
        edges = {sum(documents[:count]) for count in range(len(documents))}
        if length not in edges:
            raise IsolationError(
                f"attention_mask and {_names(explicit)} contradict each other in row {number}: the mask pads from "
                f"token {length}, inside a document: let padding start where a document ends"
            )


def _check_labels(boundaries: Boundaries, labels: Any, explicit: Mapping[str, Any]) -> None:
    """What has labels is no padding. Flat lengths are cut short where a batch is sliced: dispatched, or scattered to replicas."""
    ends = [sum(documents) for documents in boundaries.rows]
    if min(ends) == boundaries.row_length or getattr(labels, "shape", None) != (len(ends), boundaries.row_length):
        return
    for number, (end, row) in enumerate(zip(ends, labels, strict=True)):
        if bool((row[end:] != -100).any()):
            raise IsolationError(
                f"{_names(explicit)} end at token {end} of row {number}, and tokens behind it have labels: lengths were cut off "
                "(a batch sliced by accelerate or DataParallel?), or padding is to be learned; mask its labels with -100"
            )


def _check_limits(boundaries: Boundaries, arguments: Mapping[str, Any]) -> None:
    longest = max(boundaries.lengths, default=0)
    for name in LIMITS:
        limit = arguments.get(name)
        if limit is not None and int(limit) < longest:
            raise IsolationError(
                f"{name} is {int(limit)}, but a document has {longest} tokens: give the length of the longest document"
            )
