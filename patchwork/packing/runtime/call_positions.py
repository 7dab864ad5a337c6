"""The position ids of a call, and the documents that they describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch

from ..boundaries import Boundaries
from ..errors import BoundariesError, IsolationError
from .call_tokens import Tokens


class Positions:
    """What the position ids of a call say about documents."""

    def __init__(self, value: Any, tokens: Tokens) -> None:
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

    def changes(self) -> torch.Tensor | None:
        """(B, S-1): where a document may start; None where no ids say so."""
        if self.text is not None:
            return self.text.diff(dim=1) != 1
        if self.planes is not None:
            return (self.planes.diff(dim=2) < 0).all(dim=0)
        return None

    def check_fit(self) -> None:
        """Raises BoundariesError for ids that restart, but are not one for each token."""
        if self.misfit is not None and self.misfit.shape[-1] > 1 and bool((self.misfit.diff(dim=-1) != 1).any()):
            raise BoundariesError(
                f"position_ids of shape {tuple(self.misfit.shape)} restart like those of a packed row, but the tokens are "
                f"{(self.tokens.batch, self.tokens.row_length)}: give one position per token"
            )

    def restart(self, kept: torch.Tensor | None) -> bool:
        """Whether some row's positions fall or repeat among the tokens that `kept` (B, S) leaves: padding has any ids.

        A gap alone, as a mask in the middle of one document leaves it, is no restart. Image patches repeat and jump in
        single planes, so only a fall of all three counts there.
        """
        return any(len(tokens) for tokens in self._falls(kept))

    def go_on_from_padding(self, kept: torch.Tensor) -> bool:
        """Whether positions fall among the kept tokens only where a token counts on from the masked one before it.

        Generation does so behind a prompt that is padded at its end: it adds 1 to the last position, which is the padding's.
        """
        ids = self._planes()
        if ids is None:
            return True
        for row, tokens in enumerate(self._falls(kept)):
            steps = ids[:, row, tokens] - ids[:, row, tokens - 1]
            if bool(kept[row, tokens - 1].any()) or bool((steps != 1).any()):
                return False
        return True

    def _planes(self) -> torch.Tensor | None:
        """(planes, B, S) on the CPU: the text plane alone where there is one."""
        ids = self.text[None] if self.text is not None else self.planes
        return None if ids is None else ids.cpu()

    def _falls(self, kept: torch.Tensor | None) -> Iterator[torch.Tensor]:
        """For each row the kept tokens whose position is not above that of the kept token before them."""
        ids = self._planes()
        if ids is None:
            return
        places = torch.arange(self.tokens.row_length)
        for row in range(self.tokens.batch):
            left = places if kept is None else places[kept[row]]
            steps = ids[:, row, left].diff(dim=1)
            yield left[1:][(steps <= 0 if self.text is not None else steps < 0).all(dim=0)]

    def left_padded(self) -> bool:
        """Whether the ids do not count at all at first (one fill value), and from there on count to the end of the row."""
        changes = self.changes()
        return changes is not None and not bool((changes[:, 1:] & ~changes[:, :-1]).any())

    def boundaries(self, valid: list[int]) -> Boundaries | None:
        """The documents that the ids alone describe; None where they restart inside the masked tail only."""
        changes = self.changes()
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

    def confirm(self, boundaries: Boundaries, explicit: Iterable[str]) -> Boundaries:
        """`boundaries`, if the ids agree with them. A last segment whose ids are all 0 is a padding tail."""
        if self.text is None:
            return boundaries
        given, ids, rows = ", ".join(explicit), self.text.cpu(), []
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
                    f"position_ids and {given} contradict each other in row {number}: position_ids start "
                    f"documents at tokens {[0, *starts][:8]}, {given} at {edges[:-1][:8]}: "
                    "make both restart at the same tokens, or leave one of them out"
                )
            rows.append(documents)
        return Boundaries(tuple(rows), boundaries.row_length, boundaries.device)
