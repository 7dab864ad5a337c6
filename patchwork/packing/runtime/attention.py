"""Keeps documents apart in attention that goes through transformers' registries.

In every release, attention looks its function up by the name of the implementation and calls it with tensors (batch, heads,
tokens, size) and a mask; masks are looked up likewise. Replacing the two lookups covers every model, whatever arguments it
forwards: in a packed call each lookup returns a function that knows the documents of the layer that it is in.

    sdpa, eager, registered ones   documents run side by side, each with its own part of the mask
    flex_attention                 the block mask holds the documents
    flash_attention_*              the four arguments of varlen kernels
    compiled code                  one dense mask for the row, whose shape says nothing about documents
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..argument_names import BOUNDARIES
from ..boundaries import Boundaries
from ..errors import IsolationError
from ..models.dispatch import FLEX, across_layers, flash, names_used
from .call_scope import LAYER, packed_scope
from .document_batching import side_by_side
from .markers import FLAG
from .recompute import refuse_recompute, unscoped

_MASKING = "transformers.masking_utils"
_EAGER = "eager"
# What attention is called with besides its mask. Tensors under other names may say something of the whole row.
_PER_HEAD = ("s_aux", "sinks", "head_mask")
_SQUARES = ("position_bias",)
_CHOSEN = ("indices", "block_indices")  # sdpa and eager ignore these; the mask carries the same information
_DROPPED = ("position_ids", "cache_position", *BOUNDARIES)

Function = Callable[..., Any]


# ---- the doors ---------------------------------------------------------------------------------------------------


def open_doors(kind: type) -> None:
    """Puts the doors in place for attention of this class, once."""
    from transformers import masking_utils
    from transformers.modeling_utils import AttentionInterface

    _wrap_lookup(AttentionInterface, _attends)
    _wrap_lookup(masking_utils.AttentionMaskInterface, _masks)
    # With it a mask function would compare places of the row, not of documents.
    _wrap_global(vars(masking_utils), "find_packed_sequence_indices", _unpacked)
    for base in kind.__mro__:
        scope = vars(sys.modules.get(base.__module__, object))
        for name in {name for names in names_used(base) for name in names if _EAGER in name}:
            if inspect.isfunction(scope.get(name)):
                _wrap_global(scope, name, functools.partial(_attends, _EAGER))


def _wrap_lookup(interface: Any, answer: Callable[[str, Function], Function]) -> None:
    original = interface.__getitem__
    if hasattr(original, "__patchwork__"):
        return

    @functools.wraps(original)
    def __getitem__(self: Any, name: str) -> Function:
        return _answered(original(self, name), functools.partial(answer, name))

    __getitem__.__patchwork__ = True  # type: ignore[attr-defined]
    interface.__getitem__ = __getitem__


def _wrap_global(scope: Any, name: str, answer: Callable[[Function], Function]) -> None:
    original = scope[name]
    if hasattr(original, "__patchwork__"):
        return

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return _answered(original, answer)(*args, **kwargs)

    function.__patchwork__ = True  # type: ignore[attr-defined]
    scope[name] = function


def _answered(function: Function, answer: Callable[[Function], Function]) -> Function:
    if packed_scope() is not None:
        return answer(function)
    return _known(function) if unscoped() else function


def _known(function: Function) -> Function:
    """`function` where a module of a packed call may be run again without its documents."""

    @functools.wraps(function)
    def known(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.nn.Module):  # attention; masks are made without one
            refuse_recompute(args[0])
        return function(*args, **kwargs)

    return known


def _unpacked(_: Function) -> Function:
    return lambda position_ids: None


# ---- attention ---------------------------------------------------------------------------------------------------


def _attends(implementation: str, function: Function) -> Function:
    """`function` for the documents of the layer that this thread is in."""

    @functools.wraps(function)
    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        scope = packed_scope()
        if scope is None or across_layers(type(module)):  # the first: looked up within a packed call, used after it
            return function(module, query, key, value, attention_mask, *args, **kwargs)
        kind = type(module).__name__
        if FLAG not in module.__dict__ or scope.extent != LAYER:
            raise IsolationError(
                f"a {kind} that is not isolated attends in a packed call: it was put into the model after isolate(), and "
                "documents would leak in it; call isolate(model) again"
            )
        scope.reached += 1
        boundaries = scope.boundaries
        expected = (len(boundaries.rows), boundaries.row_length)
        for name, tensor in (("queries", query), ("keys", key), ("values", value)):
            if (tensor.shape[0], tensor.shape[2]) != expected:
                raise IsolationError(
                    f"{kind} attends in a packed call of {expected[0]} x {expected[1]} tokens with {name} of shape "
                    f"{tuple(tensor.shape)}: they are not of that row (a cache, another sequence?), so documents cannot be cut"
                )
        _check(kind, implementation, kwargs)
        kwargs = {name: argument for name, argument in kwargs.items() if name not in _DROPPED}
        call = functools.partial(function, module)
        if flash(implementation):
            told = boundaries.model_kwargs()
            varlen = {name: told[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")}
            return call(query, key, value, None, *args, **{**kwargs, **varlen})
        if implementation == FLEX:
            if getattr(attention_mask, "patchwork_boundaries", None) is not boundaries:
                raise IsolationError(
                    f"{kind} was given a {type(attention_mask).__name__} for flex attention that does not hold the documents "
                    "of the row: the model makes its masks by itself; use attn_implementation='sdpa'"
                )
            return call(query, key, value, attention_mask, *args, **kwargs)
        if torch.compiler.is_compiling():
            return call(query, key, value, _dense(attention_mask, boundaries, query.dtype), *args, **kwargs)
        causal = implementation == "sdpa" and _causal(module, kwargs)  # of other functions that is not known
        return _by_document(call, boundaries, (query, key, value), attention_mask, causal, args, kwargs)

    return attention


def _check(kind: str, implementation: str, kwargs: dict[str, Any]) -> None:
    known = (*_PER_HEAD, *_SQUARES, *_DROPPED, *(_CHOSEN if implementation in ("sdpa", _EAGER) else ()))
    for name, argument in kwargs.items():
        if isinstance(argument, torch.Tensor) and argument.ndim and name not in known:  # not a count, as trainers hand on
            raise IsolationError(
                f"{kind} attends in a packed call with {name} {tuple(argument.shape)}, which may choose tokens of the whole row: "
                "documents cannot be kept apart in it; train it on padded batches (packing=False)"
            )


def _causal(module: Any, kwargs: dict[str, Any]) -> bool:
    """Whether attention without a mask looks back only, as sdpa decides it."""
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _by_document(
    call: Function, boundaries: Boundaries, tensors: tuple[Any, ...], mask: Any, causal: bool, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, None]:
    """Runs attention on documents side by side. Weights are not returned: they would be those of other shapes."""
    query, key, value = (tensor.transpose(1, 2) for tensor in tensors)
    squares = {"attention_mask": mask, **{name: kwargs.pop(name) for name in _SQUARES if kwargs.get(name) is not None}}
    # Sinks are per head, or (B, heads, S, 1).
    lists = [name for name in _PER_HEAD if getattr(kwargs.get(name), "ndim", 0) == 4 and kwargs[name].shape[2] > 1]
    per_token = {"key": key, "value": value, **{name: kwargs.pop(name).transpose(1, 2) for name in lists}}

    def run(documents: Any, cut: dict[str, Any]) -> Any:
        own = {name: cut[name] for name in squares if name != "attention_mask"}
        own |= {name: cut[name].transpose(1, 2) for name in lists}
        heads = (each.transpose(1, 2) for each in (documents, cut["key"], cut["value"]))
        return call(*heads, cut["attention_mask"], *args, **kwargs, **own)[0]

    # What sees ahead would see padding behind a document.
    padded = causal or mask is not None
    return side_by_side(run, boundaries, query, per_token, masks=squares, padded=padded), None


def _dense(mask: Any, boundaries: Boundaries, dtype: torch.dtype) -> Any:
    """One mask for the whole row, bool or additive as the given one, with the documents in it."""
    numbers, length = boundaries.seq_idx, boundaries.row_length
    together = (numbers[:, :, None] == numbers[:, None, :])[:, None]
    if mask is None:
        step = torch.arange(length, device=numbers.device)
        return together & (step[:, None] >= step)
    if mask.shape[-1] != length:  # of a document on its own
        at = boundaries.position_ids
        mask = mask[0][:, at[:, :, None], at[:, None, :]].movedim(0, 1)
    return mask & together if mask.dtype is torch.bool else mask.masked_fill(~together, torch.finfo(dtype).min)


# ---- masks -------------------------------------------------------------------------------------------------------


def _masks(implementation: str, function: Function) -> Function:
    """`function`, which makes masks, for the documents of the call that this thread is in.

    A mask that follows from places alone is the same for all documents, so it is made once, for the longest; attention cuts
    it. Others are made for the row, and attention cuts documents out of it.
    """

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        scope = packed_scope()
        if scope is None or args or not _of_row(scope.boundaries, kwargs):
            return function(*args, **kwargs)
        boundaries, pattern = scope.boundaries, kwargs["mask_function"]
        of_places = _of_places(pattern)
        if not of_places and any(_name(each).startswith(("chunked", "_legacy_chunked")) for each in _leaves(pattern)):
            raise IsolationError(
                "a mask of chunks is combined with one that depends on the row (images?), which packed documents cannot have"
            )
        with_documents = {**kwargs, "mask_function": _documents_in(pattern, boundaries, of_places), "allow_is_causal_skip": False}
        if implementation == FLEX:
            mask = function(**with_documents)
            mask.patchwork_boundaries = boundaries
            return mask
        if scope.row_masks or torch.compiler.is_compiling():
            return function(**with_documents)
        if not of_places:
            return function(**kwargs)
        mask = function(**{**kwargs, **_of_one(boundaries, kwargs)})
        # A document that fills a row of its own has a mask of the same shape as the row.
        return mask if mask is None or boundaries.max_seqlen < boundaries.row_length else function(**with_documents)

    return made


def _of_row(boundaries: Boundaries, kwargs: dict[str, Any]) -> bool:
    place = kwargs.get("cache_position")
    queries = kwargs.get("q_length", None if place is None else place.shape[0])
    return "mask_function" in kwargs and (queries, kwargs.get("kv_length")) == (boundaries.row_length,) * 2


def _of_one(boundaries: Boundaries, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What makes it a mask for one document, as long as the longest."""
    longest = boundaries.max_seqlen
    changed: dict[str, Any] = {"batch_size": 1, "kv_length": longest, "attention_mask": None}
    if "q_length" in kwargs:
        changed["q_length"] = longest
    if kwargs.get("cache_position") is not None:
        changed["cache_position"] = torch.arange(longest, device=kwargs["cache_position"].device)
    return changed


def _documents_in(pattern: Function, boundaries: Boundaries, of_places: bool) -> Function:
    """A mask function for the row that also keeps documents apart."""
    numbers, places = boundaries.seq_idx, boundaries.position_ids

    def inner(batch: Any, head: Any, query: Any, key: Any) -> Any:
        together = numbers[batch, query] == numbers[batch, key]
        if of_places:
            query, key = places[batch, query], places[batch, key]
        return together & pattern(batch, head, query, key)

    return inner


def _of_places(pattern: Function) -> bool:
    """Whether a mask function looks back only, and at nothing but places."""
    return _looks_back(pattern) and all(_name(leaf) in _PLACES for leaf in _leaves(pattern))


_PLACES = {
    "causal_mask_function",
    *(f"{name}.<locals>.inner_mask" for name in ("sliding_window_overlay", "chunked_overlay", "_legacy_chunked_overlay")),
}


def _looks_back(pattern: Function) -> bool:
    if _name(pattern) == "and_masks.<locals>.and_mask":
        return any(map(_looks_back, _parts(pattern)))
    return _name(pattern) == "causal_mask_function"


def _leaves(pattern: Function) -> Iterator[Function]:
    if _name(pattern) in ("and_masks.<locals>.and_mask", "or_masks.<locals>.or_mask"):
        for part in _parts(pattern):
            yield from _leaves(part)
    else:
        yield pattern


def _parts(pattern: Any) -> tuple[Function, ...]:
    cell = pattern.__closure__[pattern.__code__.co_freevars.index("mask_functions")]
    return tuple(cell.cell_contents)


def _name(pattern: Any) -> str:
    return str(getattr(pattern, "__qualname__", "")) if getattr(pattern, "__module__", "") == _MASKING else ""
