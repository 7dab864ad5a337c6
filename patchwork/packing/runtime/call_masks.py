"""The attention mask of a call: which tokens it keeps, and which documents it numbers or hides from each other.

A mask of two dimensions keeps tokens, or numbers documents. A prepared mask says for each token which others it sees: a
tensor (B or 1, heads or 1, S, S), bool or additive, a block mask of flex attention, or one mask for each kind of layer. Its
documents are read where each token sees those before it in its document, and no others. A causal mask, padding, a window
(what is hidden depends on the distance alone) and tokens that see ahead describe no documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from ..boundaries import Boundaries
from ..errors import IsolationError
from .call_tokens import Cache, Tokens, tokens_of

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
# An additive mask hides what it moves this far down: the softmax of it is 0 in every precision.
_HIDDEN = -1e4
_UNREADABLE = (
    "attention_mask numbers documents, and compiled code cannot read them out of it: describe them by position_ids that "
    "restart (patchwork)"
)


def is_prepared(mask: Any) -> bool:
    """Whether a mask is neither left out nor of one number per token."""
    return mask is not None and not (isinstance(mask, torch.Tensor) and mask.ndim == 2)


def may_describe(arguments: Mapping[str, Any], recurrent: bool, known: bool) -> bool:
    """Whether the mask of a call may describe documents, by its kind alone; nothing is read.

    Compiled code goes on in one graph: numbers are not read there, they end in a RuntimeError when the code runs, without a
    wait for the device.
    """
    mask, tokens = arguments.get("attention_mask"), tokens_of(arguments)
    if mask is None or tokens is None or tokens.row_length < 2:
        return False
    if is_prepared(mask):
        return recurrent
    if mask.dtype not in _INTEGERS:
        return False
    if not torch.compiler.is_compiling() or mask.device.type not in ("cpu", "cuda"):
        return True
    torch._assert_async(~_numbered(mask, known), _UNREADABLE)
    return False


def without_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one document a row, with a mask of 0 and 1: some mixers multiply by its values."""
    mask = arguments.get("attention_mask")
    if is_prepared(mask) or mask is None or mask.dtype not in _INTEGERS:
        return arguments
    return {**arguments, "attention_mask": mask.clamp(max=1)}


def _numbered(mask: torch.Tensor, known: bool) -> torch.Tensor:
    """Whether a mask (B, S) holds numbers above 1. In a model that is not `known`, numbers that fall along the row are
    something else, such as Longformer's 2 for tokens that see all others."""
    found = (mask > 1).any()
    if known:
        return found
    return found & ~((mask[:, 1:] < mask[:, :-1]) & (mask[:, 1:] > 0)).any()


class CallMask:
    """The mask of a call with these tokens. It may cover what a cache holds, too."""

    def __init__(self, value: Any, tokens: Tokens, cache: Cache, known: bool = True) -> None:
        self.value, self.tokens, self.cache, self.known = value, tokens, cache, known
        self.prepared = is_prepared(value)

    def numbered(self) -> torch.Tensor | None:
        """Whether it numbers documents, as a tensor on its device; None where it does not by its kind."""
        own = self._own(self.value)
        if own is None or own.dtype not in _INTEGERS or self.tokens.row_length < 2:
            return None
        return _numbered(own, self.known)

    def numbers(self) -> Boundaries:
        """The documents that it numbers. Raises BoundariesError for numbers that do not go up one by one."""
        own = self._own(self.value)
        assert own is not None, "numbered() has said so"
        return Boundaries.from_indexed_mask(own.expand(self.tokens.batch, -1), device=self.tokens.device)

    @cached_property
    def kept(self) -> torch.Tensor | None:
        """(B, S) on the CPU: the tokens of this call that it keeps; None for all."""
        found = [own != 0 for value in self._parts().values() if (own := self._own(value)) is not None]
        found += [view.kept.any(dim=1) for view in self._views.values()]
        if not found:
            return None
        return torch.stack([each.cpu().expand(self.tokens.batch, -1) for each in found]).any(dim=0)

    def documents(self) -> Boundaries | None:
        """The documents that a prepared mask keeps apart; None where it keeps none apart. One read from the device for each
        mask, two for one that hides more than the future and padding.

        Raises IsolationError where it hides tokens in any other way, or its parts keep different documents apart.
        """
        found = {name: view.documents(self.tokens) for name, view in self._views.items() if not name.startswith("chunked")}
        apart = [each for each in found.values() if each is not None]
        if not apart:
            return None
        if any(each != apart[0] for each in found.values()):
            raise IsolationError(
                f"the attention masks of {', '.join(found)} keep different documents apart, and recurrent mixers need one "
                "answer: give all of them the same documents, or position_ids that restart and no mask"
            )
        return apart[0]

    @cached_property
    def _views(self) -> dict[str, _View]:
        return {name: view for name, value in self._parts().items() if (view := self._view(value)) is not None}

    def _parts(self) -> dict[str, Any]:
        """The masks of all kinds of layers; one for all goes by no name."""
        return dict(self.value) if isinstance(self.value, Mapping) else {"": self.value}

    def _start(self, columns: int) -> int:
        """The column of this call's first token: behind what the cache holds, else the last columns are its tokens."""
        past, own = self.cache.past, self.tokens.row_length
        return columns - own if past is None or columns < past + own else past

    @property
    def has_other_columns(self) -> bool:
        """Whether it has more columns than there are tokens in the cache and the call."""
        if self.prepared or self.value is None or self.cache.past is None:
            return False
        return bool(self.value.shape[1] > self.cache.past + self.tokens.row_length)

    def _own(self, value: Any) -> torch.Tensor | None:
        """(B or 1, S): the part of a mask of two dimensions that is of this call's tokens."""
        if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.shape[0] not in (1, self.tokens.batch):
            return None
        start = self._start(value.shape[1])
        return None if start < 0 else value[:, start : start + self.tokens.row_length]

    def _view(self, value: Any) -> _View | None:
        """What tokens of this call see of each other; None for what is no such mask."""
        size = self.tokens.row_length
        if type(value).__name__ == "BlockMask":
            from torch.nn.attention.flex_attention import create_mask

            start = self._start(value.shape[-1])
            batch, heads = value.kv_num_blocks.shape[:2]
            value = create_mask(value.mask_mod, batch, heads, size, start + size, device=str(value.kv_num_blocks.device))
        if isinstance(value, torch.Tensor) and value.ndim == 3:
            value = value[:, None]
        if not isinstance(value, torch.Tensor) or value.ndim != 4 or value.shape[0] not in (1, self.tokens.batch):
            return None
        start = self._start(value.shape[3])
        if value.shape[2] not in (1, size) or start < 0:
            return None
        own = value[..., start : start + size].expand(-1, -1, size, -1)
        return _View(own > _HIDDEN if own.is_floating_point() else own != 0)


class _View:
    """What the tokens of each row and head see of each other: `visible` (B or 1, heads or 1, S, S)."""

    def __init__(self, visible: torch.Tensor) -> None:
        self.visible = visible
        size = visible.shape[-1]
        self.places = torch.arange(size, device=visible.device)
        self.past = self.places[:, None] >= self.places
        # A token that sees ahead may be padding: where softmax of nothing would be nan, padding is made to see all.
        ahead = (visible & ~self.past).any(dim=-1, keepdim=True)
        self.kept = (visible & self.past & ~ahead).any(dim=-2)

    def documents(self, tokens: Tokens) -> Boundaries | None:
        """The documents that it keeps apart; None for none. Raises IsolationError for what hides tokens in another way."""
        both = self.kept[..., :, None] & self.kept[..., None, :]
        hidden = both & self.past & ~self.visible
        starts = self._starts()
        hides, begins = torch.stack([hidden.any(), starts.any()]).tolist()
        if not hides:
            return None
        numbers = starts.cumsum(dim=-1)
        if begins:
            together = self.past & (numbers[..., :, None] == numbers[..., None, :])
            apart = ~((self.visible != together) & both).any() & (numbers == numbers[:, :1]).all()
        else:
            apart = self._by_distance(hidden, both & self.past)
        if not bool(apart):
            raise IsolationError(
                "attention_mask hides earlier tokens of a row, in another way than padding, a window, or documents one after the "
                "other: this model's recurrent mixers would read what it hides; give position_ids that restart, and no mask"
            )
        if not begins:
            return None
        marked = (numbers[:, 0] + 1).masked_fill(~self.kept.any(dim=1), 0)
        return Boundaries.from_indexed_mask(marked.expand(tokens.batch, -1), device=tokens.device)

    def _starts(self) -> torch.Tensor:
        """The kept tokens that do not see the kept token before them."""
        last = torch.where(self.kept, self.places, -1).cummax(dim=-1).values
        before = torch.nn.functional.pad(last[..., :-1], (1, 0), value=-1)
        sees = self.visible.gather(-1, before.clamp(min=0)[..., None])[..., 0]
        return self.kept & (before >= 0) & ~sees

    def _by_distance(self, hidden: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Whether of all `pairs` of tokens at one distance all are `hidden`, or none."""
        distance = (self.places[:, None] - self.places).clamp(min=0).expand_as(hidden).flatten(-2)
        counts = [
            torch.zeros(*hidden.shape[:2], hidden.shape[-1], dtype=torch.int64, device=hidden.device).scatter_add_(
                -1, distance, each.flatten(-2).long()
            )
            for each in (hidden, pairs)
        ]
        return ((counts[0] == 0) | (counts[0] == counts[1])).all()
