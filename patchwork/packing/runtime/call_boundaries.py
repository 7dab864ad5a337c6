"""Reads the boundaries of a backbone's call from its arguments, nothing else; a call without them is not packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..argument_names import EXPLICIT, LIMITS
from ..boundaries import Boundaries
from ..errors import BoundariesError, IsolationError
from .call_masks import CallMask, is_prepared, may_describe
from .call_positions import Positions
from .call_tokens import Cache, Tokens, tokens_of

# Not in torch 2.6, where an export without fake tensors cannot be told from a compile.
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def describes_nothing(arguments: Mapping[str, Any], recurrent: bool = True, known: bool = True) -> bool:
    """Whether a call is ordinary by its shapes alone. Reads no tensor, so it can be traced by torch.compile.

    `recurrent` and `known` as for `resolve`. A mask of integers may number documents, so it makes a call worth a look;
    compiled code gets a check of the numbers in its place, which raises RuntimeError.

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
    return not restartable and not described and not may_describe(arguments, recurrent, known)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def resolve(arguments: Mapping[str, Any], recurrent: bool = True, known: bool = True) -> Boundaries | None:
    """The boundaries that a call carries, or None for an ordinary call, which is to be left untouched.

    `arguments` are those of a backbone by name: `input_ids` or `inputs_embeds` (B, S, ...), `position_ids`,
    `attention_mask`, the explicit descriptions, the cache, and `logits_to_keep`, by which generation shows. `recurrent`:
    whether the model has mixers that a prepared attention mask does not reach; its documents are read there, and else left to
    attention. `known`: whether its `attention_mask` is sure to hold no numbers but those of documents. A call with explicit
    boundaries of one document does carry boundaries.

    An ordinary call costs one read from the device if it has several positions a row or a mask of integers, and none else; one
    with a prepared mask in a recurrent model costs one more, for each kind of layer.

    Raises BoundariesError for a description that cannot be right, IsolationError for two that contradict each other, for
    packed rows whose padding is not last, for packed rows with a cache, and for a prepared mask that hides tokens otherwise.
    """
    tokens = tokens_of(arguments)
    if tokens is None or _shapes_only(arguments):
        return None
    positions, cache = Positions(arguments.get("position_ids"), tokens), Cache(arguments)
    mask = CallMask(arguments.get("attention_mask"), tokens, cache, known)
    if not cache.in_use:
        positions.check_fit()
    explicit = {name: value for name in EXPLICIT if not _empty(value := arguments.get(name))}
    restart, numbered = _read(positions.changes(), mask.numbered(), tokens.device)
    if not explicit and not restart and not numbered and not (mask.prepared and recurrent):
        return None
    if (cache.paged and not recurrent) or (cache.in_use and tokens.row_length == 1):
        return None
    if numbered:
        explicit["attention_mask"] = mask.numbers()
    if mask.prepared:
        seen = mask.documents() if recurrent else None
        if seen is None:
            _check_prepared(explicit, positions, mask, cache, recurrent)
            return None
        explicit["attention_mask"] = seen
    found = _found(arguments, explicit, positions, mask, cache)
    if found is not None:  # read here, where nothing is traced: compiled code then knows tensors, not the lengths of one row
        _ = found.packed, found.seq_idx, found.position_ids
    return found


def resolve_unknown(arguments: Mapping[str, Any]) -> Boundaries | None:
    """The boundaries that a call of a model of no known family carries, which has to be refused then; raises as `resolve`.

    A prepared mask cannot protect mixers that nobody knows. Beside positions alone, though, generation hands one over.
    """
    explicit = any(not _empty(arguments.get(name)) for name in EXPLICIT)
    if explicit and is_prepared(arguments.get("attention_mask")):
        arguments = {**arguments, "attention_mask": None}
    found: Boundaries | None = resolve(arguments, recurrent=False, known=False)
    return found


def _found(
    arguments: Mapping[str, Any], explicit: Mapping[str, Any], positions: Positions, mask: CallMask, cache: Cache
) -> Boundaries | None:
    """The boundaries of a call that describes some, if all that it has agrees."""
    described = _agreed(explicit, mask.tokens) if explicit else None
    if described is None and mask.has_other_columns and _generating(arguments):
        return None  # columns of a prefix, which PEFT's prefix tuning puts into another cache: none tells where padding is
    given, valid = _names(explicit) or "position_ids", _valid_lengths(mask)
    if cache.in_use or valid is None:
        if not _packed(described, positions, mask, arguments):
            return None
        if cache.in_use:
            raise IsolationError(
                f"packed rows ({given}) came with {cache.name}, which holds tokens already: they "
                "cannot continue a cache, whose state is that of one document; call without a cache"
            )
        raise IsolationError(
            f"attention_mask has zeros before the end of a row, {given} describe packed "
            "documents: packed rows must have their padding last; drop the mask, or move the padding to the end"
        )
    if described is None:
        found = positions.boundaries(valid)
    else:
        found = positions.confirm(described, explicit)
        _check_mask(found, valid, explicit)
        _check_limits(found, arguments)
        _check_labels(found, arguments.get("labels"), explicit)
        found = found.without_padding(valid)
    if cache.name is not None and found is not None and found.packed:
        raise IsolationError(
            f"packed rows came with a cache ({cache.name}), as generate() passes one: it would stay empty, and decoding would "
            "go on without context; call without past_key_values and with use_cache=False, or generate from padded rows"
        )
    return found


def _read(changes: torch.Tensor | None, numbered: torch.Tensor | None, device: torch.device) -> tuple[bool, bool]:
    """Whether positions restart, and whether the mask numbers documents: both in one read from the device."""
    flags = {"changes": None if changes is None else changes.any(), "numbered": numbered}
    given = {name: flag.to(device) for name, flag in flags.items() if flag is not None}
    read = dict(zip(given, torch.stack(list(given.values())).tolist(), strict=True)) if given else {}
    return read.get("changes", False), read.get("numbered", False)


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


def _packed(described: Boundaries | None, positions: Positions, mask: CallMask, arguments: Mapping[str, Any]) -> bool:
    """Whether a call whose padding is not last, or that continues a cache, has packed rows.

    Positions that fall behind padding and count on from it may be those of a document that is padded at its start. Generation
    makes them too, of a prompt that is padded at its end, so there they mean nothing.
    """
    if described is not None and described.packed:
        return True
    if not positions.restart(mask.kept):
        return False
    if mask.kept is None or not _generating(arguments):
        return True
    return not positions.go_on_from_padding(mask.kept)


def _generating(arguments: Mapping[str, Any]) -> bool:
    """Whether a call is one of `generate()`: it asks for the last logits alone, and no gradient can flow."""
    keep = arguments.get("logits_to_keep")
    return not torch.is_grad_enabled() and isinstance(keep, int) and keep > 0


def _valid_lengths(mask: CallMask) -> list[int] | None:
    """Tokens before the masked tail of each row; None if there are zeros elsewhere."""
    kept, row_length = mask.kept, mask.tokens.row_length
    if kept is None:
        return [row_length] * mask.tokens.batch
    lengths = kept.sum(dim=1)
    if bool((kept != (torch.arange(row_length) < lengths[:, None])).any()):
        return None
    return [int(length) for length in lengths.tolist()]


def _check_prepared(explicit: Mapping[str, Any], positions: Positions, mask: CallMask, cache: Cache, recurrent: bool) -> None:
    """Raises IsolationError where boundaries came with a prepared mask that keeps no documents apart. Attention alone obeys the
    mask; beside recurrent mixers positions that restart are a contradiction, too.

    Generation with a static cache prepares its masks, and pads: it hands in a cache, and ids that restart in the padding.
    """
    if explicit and not recurrent:
        raise IsolationError(
            f"{_names(explicit)} came with a prepared attention mask, and which documents that keeps apart is not known: "
            "leave attention_mask out of packed calls"
        )
    if not recurrent:
        return
    restart = False
    if not explicit and positions.text is not None and not (cache.name is not None and positions.left_padded()):
        padded = mask.kept is not None and not bool(mask.kept.all())
        changes = positions.changes()
        restart = positions.restart(mask.kept) if padded or cache.in_use else changes is not None and bool(changes.any())
    if explicit or restart:
        raise IsolationError(
            f"a packed row ({_names(explicit) or 'position_ids'}) came with a prepared attention mask, which this "
            "model's recurrent mixers cannot see: leave attention_mask out of packed calls"
        )


def _agreed(explicit: Mapping[str, Any], tokens: Tokens) -> Boundaries:
    """The one set of boundaries that all explicit arguments describe."""
    known: dict[str, Boundaries] = {}
    total = tokens.batch * tokens.row_length
    for name, value in explicit.items():
        if isinstance(value, Boundaries):  # read out of a mask
            made = value
        elif name == "seq_idx":
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
