"""Takes the padding out of a backbone's call with padded rows, and puts the results back.

Where a trainer asks for it, the valid tokens of an ordinary padded call are taken out into one row of documents, the packed call
runs, and what comes out goes back to its places, zeros where padding was. So logits, losses and metrics around the backbone see
the shapes that they always see. A call that cannot be put back runs padded, as it is.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..argument_names import CACHES
from ..boundaries import Boundaries
from ..errors import IsolationError
from ..models.families import Family
from .call_boundaries import is_exporting
from .markers import FLAG, UNPADS


@contextmanager
def unpadded(*models: Any) -> Iterator[int]:
    """Within it the isolated backbones of `models` compute without padding, in each thread. Yields how many there are."""
    backbones = [module for model in models for module in model.modules() if _isolated_backbone(module)]
    switched = [backbone for backbone in backbones if UNPADS not in backbone.__dict__]
    for backbone in switched:
        backbone.__dict__[UNPADS] = True
    try:
        yield len(backbones)
    finally:
        for backbone in switched:
            backbone.__dict__.pop(UNPADS, None)


def _isolated_backbone(module: Any) -> bool:
    flag = module.__dict__.get(FLAG)
    return flag is not None and flag.role == "backbone"


@dataclass(frozen=True)
class Taken:
    """The valid tokens of a padded call. `arguments`: of a call with them in one row; `boundaries`: of that row;
    `places` (T,): where they stood among the B * S of `shape`."""

    arguments: dict[str, Any]
    boundaries: Boundaries
    places: torch.Tensor
    shape: tuple[int, int]

    def put_back(self, output: Any) -> Any:
        """The output of the row with its tokens back at their places.

        Raises IsolationError for an output that holds what is not known to be per token.
        """
        fields = dict(output.items())
        for name, value in fields.items():
            if name in CACHES:
                fields[name] = None  # nobody asked for it, and it would be that of one row
            elif name in _PER_TOKEN:
                fields[name] = tuple(map(self._scattered, value)) if isinstance(value, (tuple, list)) else self._scattered(value)
            else:
                raise IsolationError(
                    f"{name} of a {type(output).__name__} cannot be put back where padding was taken out: train with "
                    "padding_free=False"
                )
        return type(output)(**fields)

    def _scattered(self, value: Any) -> Any:
        if value is None:
            return None
        batch, length = self.shape
        tokens = self.places.shape[0]
        if tuple(value.shape[:2]) == (1, tokens):
            return self._placed(value[0]).reshape(batch, length, *value.shape[2:])
        if value.shape[0] == tokens and value.ndim == 2:  # routers see tokens one after the other
            return self._placed(value)
        raise IsolationError(
            f"an output of shape {tuple(value.shape)} cannot be put back: it is not one for each of {tokens} tokens; train "
            "with padding_free=False"
        )

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        batch, length = self.shape
        return value.new_zeros(batch * length, *value.shape[1:]).index_copy(0, self.places.to(value.device), value)


_PER_TOKEN = ("last_hidden_state", "hidden_states", "router_logits")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def take_out(backbone: Any, arguments: Mapping[str, Any], heard: Mapping[str, Any], family: Family) -> Taken | None:
    """The valid tokens of an ordinary call, or None if there is no padding to take out, or it could not be put back.

    `arguments`: those of the call by name, without boundaries; `heard`: with what the model around the backbone was told.
    Costs one read from the device.
    """
    mask, positions = heard.get("attention_mask"), heard.get("position_ids")
    tokens = _tokens(arguments)
    if (
        tokens is None
        or mask is None
        or not _two_dimensional(mask)
        or mask.shape != tokens.shape[:2]
        or not _fit(backbone, arguments)
    ):
        return None
    if positions is not None and not _places_of_tokens(positions, tokens, family):
        return None
    kept = mask.cpu()
    if not bool(((kept == 0) | (kept == 1)).all()) or bool((kept == 1).all()):
        return None
    kept = kept == 1
    begins = kept.diff(dim=1, prepend=torch.zeros_like(kept[:, :1]))
    lengths = [length for length in kept.sum(dim=1).tolist() if length]
    # Whether positions count padding at the start of a row differs from family to family, unless they are given.
    if not lengths or int((begins & kept).sum()) > len(lengths) or (positions is None and bool((begins & kept)[:, 1:].any())):
        return None
    places = kept.flatten().nonzero().flatten().to(tokens.device)
    taken = {name: value for name, value in arguments.items() if name != "attention_mask"}
    for name in ("input_ids", "inputs_embeds"):
        if taken.get(name) is not None:
            taken[name] = taken[name].flatten(0, 1).index_select(0, places)[None]
    if positions is not None:
        every = positions.expand(*positions.shape[:-2], *tokens.shape[:2]).flatten(-2)
        taken["position_ids"] = every.index_select(-1, places.to(every.device))[..., None, :]
    return Taken(taken, Boundaries.from_seq_lens(lengths, device=tokens.device), places, (tokens.shape[0], tokens.shape[1]))


def _tokens(arguments: Mapping[str, Any]) -> torch.Tensor | None:
    """What has the shape (B, S, ...) of the tokens, if all that describes them has."""
    given = {name: value for name in ("input_ids", "inputs_embeds") if (value := arguments.get(name)) is not None}
    dimensions = {"input_ids": 2, "inputs_embeds": 3}
    if not given or any(not isinstance(each, torch.Tensor) or each.ndim != dimensions[name] for name, each in given.items()):
        return None
    first: torch.Tensor = next(iter(given.values()))
    same = all(each.shape[:2] == first.shape[:2] and each.device.type != "meta" for each in given.values())
    return first if same and not isinstance(first, FakeTensor) and not is_exporting() else None


def _two_dimensional(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.ndim == 2 and not isinstance(mask, FakeTensor) and mask.device.type != "meta"


def _places_of_tokens(positions: Any, tokens: torch.Tensor, family: Family) -> bool:
    """Whether there is one position per token: (B or 1, S), or planes of them where the family takes those."""
    if not isinstance(positions, torch.Tensor) or positions.ndim not in (2, 3) or positions.shape[-1] != tokens.shape[1]:
        return False
    planes = positions.ndim == 2 or (family.text_plane and positions.shape[0] in (3, 4))
    return planes and positions.shape[-2] in (1, tokens.shape[0])


def _fit(backbone: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a call asks for nothing that is of the rows as they are: a cache, weights, a tuple, tensors of another kind."""
    if any(arguments.get(name) is not None for name in CACHES):
        return False
    if _asked(backbone, arguments, "use_cache") or _asked(backbone, arguments, "output_attentions"):
        return False
    if arguments.get("return_dict") is False or getattr(backbone.config, "return_dict", True) is False:
        return False
    if _asked(backbone, arguments, "output_router_logits") and not _masks_padding(type(backbone)):
        return False
    known = ("input_ids", "inputs_embeds", "attention_mask", "position_ids")
    return all(name in known or _says_nothing_of_tokens(value) for name, value in arguments.items())


def _asked(backbone: Any, arguments: Mapping[str, Any], name: str) -> bool:
    given = arguments.get(name)
    return bool(getattr(backbone.config, name, False) if given is None else given)


def _says_nothing_of_tokens(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str)) or (isinstance(value, torch.Tensor) and value.ndim == 0)


def _masks_padding(kind: type) -> bool:
    """Whether the router's loss of a family leaves padding out, by the mask: zeros put there are not seen then."""
    for base in kind.__mro__:
        found = getattr(sys.modules.get(base.__module__), "load_balancing_loss_func", None)
        if found is not None:
            return "attention_mask" in inspect.signature(found).parameters
    return False
