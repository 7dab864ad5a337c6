"""`Boundaries`: where the documents of packed rows begin and end, as one frozen, validated value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch

from .errors import BoundariesError

Device = torch.device | str | None

_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}


@dataclass(frozen=True)
class Boundaries:
    """The documents of a batch of rows, row by row.

    `rows` holds the document lengths of each row, padding left out. What is left of a row up to `row_length` is its
    tail: padding, which is kept apart like a document but counts as none. `device` is where the tensors live.
    """

    rows: tuple[tuple[int, ...], ...]
    row_length: int
    device: torch.device

    # ---- construction -------------------------------------------------------------------------------------------

    @classmethod
    def from_seq_lens(cls, lengths: Any, total: int | None = None, device: Device = None) -> Boundaries:
        """From document lengths: one flat list for one row, or a list of lists for several.

        `total` is the length of each row in tokens, padding included; left out, it is the longest row.
        Raises BoundariesError for lengths that are empty, not integers, not positive, or longer than the row.
        """
        nested = _is_nested(lengths)
        rows = [_integers("lengths", row) for row in (lengths if nested else [lengths])]
        if not rows or not any(rows):
            raise BoundariesError("lengths is empty: give at least one document length")
        row_length = max(map(sum, rows)) if total is None else _count("total", total)
        return cls._checked("lengths", rows, row_length, _device(device, lengths))

    @classmethod
    def from_cu_seqlens(
        cls, cu_seqlens: Any, total: int | None = None, row_length: int | None = None, device: Device = None
    ) -> Boundaries:
        """From cumulative lengths over all tokens, rows after each other: `[0, 7, 12, 21]` is three documents.

        `total` counts the tokens of all rows (left out: the last entry), `row_length` those of one (left out: one
        row). Raises BoundariesError if the numbers do not start at 0, do not increase, pass `total`, or if a
        document would span two rows.
        """
        ends = _integers("cu_seqlens", cu_seqlens)
        if not ends or ends[0] != 0:
            raise BoundariesError(f"cu_seqlens must start at 0, got {ends[:3]}: give N+1 numbers for N documents")
        for before, after in pairwise(ends):
            if after <= before:
                raise BoundariesError(f"cu_seqlens must increase, but {before} is followed by {after}: drop empty documents")
        total = ends[-1] if total is None else _count("total", total)
        row_length = total if row_length is None else _count("row_length", row_length)
        if ends[-1] > total:
            raise BoundariesError(f"cu_seqlens ends at {ends[-1]}, past the {total} tokens of the batch")
        if len(ends) < 2:
            raise BoundariesError("cu_seqlens holds no document: give at least [0, length]")
        if total % row_length:
            raise BoundariesError(f"total ({total}) is no multiple of row_length ({row_length})")
        lengths = [after - before for before, after in pairwise(ends)]
        return cls._dealt("cu_seqlens", lengths, total // row_length, row_length, _device(device, cu_seqlens))

    @classmethod
    def from_packed_seq_lengths(
        cls, lengths: Any, batch: int = 1, row_length: int | None = None, device: Device = None
    ) -> Boundaries:
        """From unsloth's `packed_seq_lengths`: the lengths of all documents of all rows in one flat list."""
        flat = _integers("packed_seq_lengths", lengths)
        row_length = sum(flat) if row_length is None else _count("row_length", row_length)
        return cls._dealt("packed_seq_lengths", flat, batch, row_length, _device(device, lengths))

    @classmethod
    def from_seq_idx(cls, seq_idx: Any, device: Device = None) -> Boundaries:
        """From document numbers per token, `(S,)` or `(B, S)`: within a row they stay or go up by 1.

        A tail that is numbered cannot be told from a document, so it is one here; `without_padding` leaves it out.
        """
        grid = _grid("seq_idx", seq_idx)
        steps = grid.diff(dim=1)
        wrong = (steps != 0) & (steps != 1)
        if bool(wrong.any()):
            row, column = wrong.nonzero()[0].tolist()
            before, after = grid[row, column].item(), grid[row, column + 1].item()
            raise BoundariesError(
                f"seq_idx must stay or go up by 1, but row {row} goes from {before} to {after} at token {column + 1}: "
                "number the documents of a row in order"
            )
        return cls._from_starts(steps != 0, grid.shape[1], _device(device, seq_idx))

    @classmethod
    def from_position_ids(cls, position_ids: Any, device: Device = None) -> Boundaries:
        """From positions per token, `(S,)`, `(B, S)` or MRoPE's `(4, B, S)` with the text plane first.

        A document starts wherever the position does not go up by exactly 1. Three-plane MRoPE ids are refused: image
        patches repeat and jump there, so they do not say where a document starts. A tail that counts from 0 cannot be told from a
        document, nor one of zeros from documents of one token; `without_padding` leaves them out.
        """
        if getattr(position_ids, "ndim", None) == 3:
            if position_ids.shape[0] != 4:
                raise BoundariesError(
                    f"position_ids has {position_ids.shape[0]} planes without a text plane: give 2-D or 4-plane ids, "
                    "or the lengths themselves (from_seq_lens)"
                )
            position_ids = position_ids[0]
        grid = _grid("position_ids", position_ids)
        return cls._from_starts(grid.diff(dim=1) != 1, grid.shape[1], _device(device, position_ids))

    @classmethod
    def from_indexed_mask(cls, mask: Any, device: Device = None) -> Boundaries:
        """From a mask that numbers documents, such as 1, 1, 2, 2, 2, 0: the zeros are padding, at the end of each row.

        Within a row the numbers go up by 1. A row may begin with any, as one does that goes on counting from the row before.
        """
        grid = _grid("mask", mask)
        valid = (grid != 0).sum(dim=1)
        tail = torch.arange(grid.shape[1]) >= valid[:, None]
        if bool(((grid == 0) != tail).any()):
            raise BoundariesError("mask has zeros before the end of a row: padding must come last")
        rows = []
        for number, (row, length) in enumerate(zip(grid, valid.tolist(), strict=True)):
            values, counts = torch.unique_consecutive(row[:length], return_counts=True)
            if bool((values.diff() != 1).any()) or bool((values < 0).any()):
                raise BoundariesError(f"mask row {number} numbers its documents {values.tolist()[:8]}, not 1, 2, 3 …")
            rows.append(counts.tolist())
        return cls._checked("mask", rows, grid.shape[1], _device(device, mask))

    @classmethod
    def _from_starts(cls, changes: torch.Tensor, row_length: int, device: torch.device) -> Boundaries:
        """`changes` (B, S-1), on the CPU: True where token i+1 starts a document."""
        rows = []
        for row in changes:
            edges = [0, *(row.nonzero().flatten() + 1).tolist(), row_length]
            rows.append(tuple(after - before for before, after in pairwise(edges)))
        return cls(tuple(rows), row_length, device)

    @classmethod
    def _dealt(cls, name: str, lengths: list[int], batch: int, row_length: int, device: torch.device) -> Boundaries:
        """Deals a flat list of lengths out to rows; a document that spans two rows is an error."""
        rows: list[list[int]] = [[] for _ in range(batch)]
        end = 0
        for length in lengths:
            row, begin = divmod(end, row_length)
            if row >= batch:
                raise BoundariesError(f"{name} describes {sum(lengths)} tokens, the batch has {batch * row_length}")
            if begin + length > row_length:
                raise BoundariesError(
                    f"{name}: the document at tokens {end} to {end + length} spans two rows of {row_length} "
                    f"(batch size {batch}): pack into one row, or end a document where a row ends"
                )
            rows[row].append(length)
            end += length
        return cls._checked(name, rows, row_length, device)

    @classmethod
    def _checked(cls, name: str, rows: Sequence[Sequence[int]], row_length: int, device: torch.device) -> Boundaries:
        for number, row in enumerate(rows):
            for length in row:
                if length <= 0:
                    raise BoundariesError(f"{name} holds {length} in row {number}: each length must be at least 1")
            if sum(row) > row_length:
                raise BoundariesError(f"{name} of row {number} sum to {sum(row)}, more than the {row_length} tokens of the row")
        return cls(tuple(tuple(row) for row in rows), row_length, device)

    # ---- what follows from it -----------------------------------------------------------------------------------

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of all documents in tokens, row by row, padding left out."""
        return tuple(length for row in self.rows for length in row)

    @property
    def num_documents(self) -> int:
        """Documents in all rows, padding left out."""
        return sum(map(len, self.rows))

    def without_padding(self, kept: Sequence[int]) -> Boundaries:
        """The documents that begin within the first `kept` tokens of each row; those behind become its tail.

        So padding that was numbered as a document counts as none, where a mask shows that it is padding.
        """
        rows = []
        for row, length in zip(self.rows, kept, strict=True):
            begins = accumulate(row, initial=0)
            rows.append(tuple(document for document, begin in zip(row, begins, strict=False) if begin < length))
        return self if tuple(rows) == self.rows else Boundaries(tuple(rows), self.row_length, self.device)

    @cached_property
    def packed(self) -> bool:
        """Whether some row holds more than one document."""
        return any(len(row) > 1 for row in self.rows)

    @cached_property
    def segments(self) -> tuple[tuple[int, ...], ...]:
        """Document lengths of each row, followed by the length of the tail where there is one."""
        return tuple((*row, *([tail] if (tail := self.row_length - sum(row)) else [])) for row in self.rows)

    @cached_property
    def max_seqlen(self) -> int:
        """The longest document or tail, in tokens."""
        return max(length for row in self.segments for length in row)

    @cached_property
    def cu_seqlens(self) -> torch.Tensor:
        """Cumulative lengths over all B * row_length tokens, tails included: int32, `(segments + 1,)`."""
        ends = [0, *accumulate(length for row in self.segments for length in row)]
        return torch.tensor(ends, dtype=torch.int32, device=self.device)

    @cached_property
    def seq_idx(self) -> torch.Tensor:
        """Number of each token's document within its row, from 0, the tail numbered too: int32, `(B, S)`."""
        rows = [torch.repeat_interleave(torch.tensor(row)) for row in self.segments]
        return torch.stack(rows).to(device=self.device, dtype=torch.int32)

    @cached_property
    def position_ids(self) -> torch.Tensor:
        """Position of each token within its document or tail: int64, `(B, S)`."""
        rows = [torch.cat([torch.arange(length) for length in row]) for row in self.segments]
        return torch.stack(rows).to(self.device)

    def model_kwargs(self) -> dict[str, Any]:
        """The arguments that transformers models and their kernels understand.

        The cumulative lengths are new tensors at each call: flash-linear-attention caches by tensor identity.
        """
        return {
            "position_ids": self.position_ids,
            "seq_idx": self.seq_idx,
            "cu_seq_lens_q": self.cu_seqlens.clone(),
            "cu_seq_lens_k": self.cu_seqlens.clone(),
            "max_length_q": self.max_seqlen,
            "max_length_k": self.max_seqlen,
        }


def _device(device: Device, source: Any) -> torch.device:
    if device is not None:
        return torch.device(device)
    return source.device if isinstance(source, torch.Tensor) else torch.device("cpu")


def _is_nested(lengths: Any) -> bool:
    if hasattr(lengths, "ndim"):
        return bool(lengths.ndim == 2)
    return bool(len(lengths)) and all(hasattr(row, "__len__") for row in lengths)


def _count(name: str, value: Any) -> int:
    (number,) = _integers(name, [value])
    if number <= 0:
        raise BoundariesError(f"{name} must be at least 1, got {number}")
    return number


def _reject_dtype(name: str, value: Any) -> None:
    """Bool and float are refused: a mask or a count of seconds is no length."""
    dtype = getattr(value, "dtype", None)
    integer = dtype in _INTEGERS if isinstance(dtype, torch.dtype) else getattr(dtype, "kind", None) in ("i", "u")
    if dtype is not None and not integer:
        raise BoundariesError(f"{name} must hold integers, got {dtype}: convert it to int32 or int64")


def _integers(name: str, value: Any) -> list[int]:
    _reject_dtype(name, value)
    if hasattr(value, "ndim") and value.ndim != 1:
        raise BoundariesError(f"{name} must be 1-D, got {value.ndim}-D of shape {tuple(value.shape)}: flatten it")
    numbers = value.tolist() if hasattr(value, "tolist") else list(value)
    for number in numbers:
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise BoundariesError(f"{name} must hold integers, got {number!r} ({type(number).__name__})")
    return [int(number) for number in numbers]


def _grid(name: str, value: Any) -> torch.Tensor:
    """Integers per token as int64 `(B, S)` on the CPU, from whatever holds them."""
    _reject_dtype(name, value)
    if not isinstance(value, torch.Tensor):
        value = torch.as_tensor(value)
        _reject_dtype(name, value)
    if value.ndim == 1:
        value = value[None]
    if value.ndim != 2 or value.numel() == 0:
        raise BoundariesError(f"{name} must be (S,) or (B, S) and not empty, got shape {tuple(value.shape)}")
    grid: torch.Tensor = value.detach().to(device="cpu", dtype=torch.int64)
    return grid
