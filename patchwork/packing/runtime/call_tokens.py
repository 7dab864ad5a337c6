"""The tokens of a backbone's call, and the cache that it was handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..argument_names import CACHES


@dataclass(frozen=True)
class Tokens:
    """Shape and place of the tokens of a call."""

    batch: int
    row_length: int
    device: torch.device


def tokens_of(arguments: Mapping[str, Any]) -> Tokens | None:
    """The tokens of a call, by its `input_ids` or `inputs_embeds`; None where it has neither."""
    for name, dimensions in (("input_ids", (2, 3)), ("inputs_embeds", (3,))):  # three: several streams of tokens (B, S, streams)
        value = arguments.get(name)
        if isinstance(value, torch.Tensor) and value.ndim in dimensions:
            return Tokens(value.shape[0], value.shape[1], value.device)
    return None


class Cache:
    """The cache that a call was handed.

    Attributes:
        name: of its argument; None without one.
        past: tokens that it holds; None without one, and for one that cannot say: of nothing but recurrent states.
        in_use: whether it holds any; one that cannot say counts as in use.
        paged: whether it is the cache of continuous batching, whose own boundaries keep rows apart.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        given = [(name, cache) for name in CACHES if (cache := arguments.get(name)) is not None]
        self.name = given[0][0] if given else None
        self.paged = any(type(cache).__name__ == "PagedAttentionCache" for _, cache in given)
        lengths = [_length(cache) for _, cache in given]
        self.in_use = any(length != 0 for length in lengths)
        known = [length for length in lengths if length is not None]
        self.past = max(known, default=None)


def _length(cache: Any) -> int | None:
    ask = getattr(cache, "get_seq_length", None)
    try:
        return None if ask is None else int(ask())
    except ValueError:  # a cache of nothing but recurrent states counts no tokens
        return None
