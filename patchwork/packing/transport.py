"""How do boundaries travel through a model, and what do its modules do with them?

Classes get one wrapper each, instances a flag; without the flag a call goes straight to the original. Boundaries travel
in the arguments of each layer's call, so that gradient checkpointing, which runs a layer again, hands it its own; they
are never read from a module. From a layer's forward to its mixers they go by a variable of the thread, set for that extent.

    backbone.forward   reads the boundaries out of the call, sets positions and masks
    layer.__call__     puts them into the call, outside of checkpointing
    layer.forward      takes them out, inside of it
    mixer.forward      runs on the documents side by side
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from patchwork.packing.arguments import BOUNDARIES, CACHES
from patchwork.packing.batching import CHUNK, padded_length, side_by_side
from patchwork.packing.boundaries import Boundaries, IsolationError
from patchwork.packing.mixers import DROPPED, Family, Mixer, family_of, mixer_of, takes_chunk
from patchwork.packing.resolution import describes_nothing, resolve

KEYWORD = "patchwork_boundaries"
FLAG = "_patchwork_isolation"

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Flag:
    """What marks an instance. It travels with copies and pickles, and puts the wrapper on the class where it arrives.

    ``mixers``: how many a layer, or a whole backbone, must reach. ``layers``: the names of a backbone's layers.
    ``reason``: why a guarded model refuses packed rows.
    """

    owner: type
    role: str
    mixers: int = 0
    layers: tuple[str, ...] = ()
    reason: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _flag, (self.owner, self.role, self.mixers, self.layers, self.reason)

    def __deepcopy__(self, memo: dict[int, Any]) -> Flag:
        return self


class Scope:
    """The extent of one backbone's or layer's forward."""

    __slots__ = ("boundaries", "layer", "reached")

    def __init__(self, boundaries: Boundaries, layer: bool) -> None:
        self.boundaries, self.layer, self.reached = boundaries, layer, 0


class _Ambient(threading.local):
    """The scope that this thread is in: threads of autograd and of DataParallel have their own.

    torch.compile traces the attribute of a thread-local object without a break, and guards on it; a ContextVar breaks the
    graph. The value is set here, not on the class, since the guard looks for it in the instance.
    """

    def __init__(self) -> None:
        self.scope: Scope | None = None


_AMBIENT = _Ambient()


@contextmanager
def _within(scope: Scope | None) -> Iterator[None]:
    outer = _AMBIENT.scope
    _AMBIENT.scope = scope
    try:
        yield
    finally:
        _AMBIENT.scope = outer


def _flag(owner: type, role: str, mixers: int = 0, layers: tuple[str, ...] = (), reason: str = "") -> Flag:
    install(owner, role)
    return Flag(owner, role, mixers, layers, reason)


# ---- wrappers on classes ----------------------------------------------------------------------------------------


def install(owner: Any, role: str) -> None:
    """Puts the wrapper of a role on a class, once."""
    if role == "layer" or role == "carrier":
        _wrap(owner, "__call__", "carrier", _carrier)
    if role == "layer" and "__init_subclass__" in _checkpointing(owner):
        # Releases that checkpoint inside ``forward`` compare ``type(self).forward`` with the function they installed.
        # So the wrapper goes below theirs, and theirs is put on again by the hook that puts it on any new class.
        inner = owner.forward.__wrapped__
        if not _wrapped(owner.forward, role):
            owner.forward = _receiver(owner, inner)
            super(owner, owner).__init_subclass__()
    elif role != "carrier":
        makers = {"layer": _receiver, "backbone": _backbone, "mixer": _mixer, "guard": _guarded}
        _wrap(owner, "forward", role, makers[role])


def _checkpointing(owner: type) -> dict[str, Any]:
    for kind in owner.__mro__:
        if kind.__name__ == "GradientCheckpointingLayer":
            return dict(vars(kind))
    return {}


def _wrap(owner: type, name: str, role: str, make: Callable[[type, Forward], Forward]) -> None:
    original = getattr(owner, name)
    if not _wrapped(original, role):
        setattr(owner, name, make(owner, original))


def _wrapped(function: Any, role: str) -> bool:
    while function is not None:
        if role in function.__dict__.get("__patchwork_roles__", ()):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _mark(wrapper: Any, role: str) -> Forward:
    # wraps() has copied the dictionary of the function below, other roles on the same class included.
    wrapper.__patchwork_roles__ = (role,)
    return wrapper  # type: ignore[no-any-return]


def _carrier(owner: type, original: Forward) -> Forward:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if FLAG in self.__dict__ and KEYWORD not in kwargs and (scope := _AMBIENT.scope) is not None:
            kwargs[KEYWORD] = scope.boundaries
        return original(self, *args, **kwargs)

    return _mark(__call__, "carrier")


def _receiver(owner: type, original: Forward) -> Forward:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        boundaries = kwargs.pop(KEYWORD, None)
        ambient = _AMBIENT.scope
        flag = self.__dict__.get(FLAG)
        if flag is None or (boundaries is None and ambient is None):
            return original(self, *args, **kwargs)
        if boundaries is None:
            raise IsolationError(
                f"{owner.__name__}.forward was called in a packed call without going through the module's __call__, so "
                "a recompute in the backward pass would not know the documents: call the layer itself"
            )
        scope = Scope(boundaries, layer=True)
        with _within(scope):
            output = original(self, *args, **kwargs)
        if scope.reached < flag.mixers:
            raise IsolationError(
                f"a {owner.__name__} has {flag.mixers} recurrent mixers, {scope.reached} were reached in a packed call: "
                "the forward of a mixer was replaced on the instance (kernelize?), so documents would leak"
            )
        # A recompute in the backward pass runs outside of the backbone's forward, so it counts nothing twice.
        if scope.reached and ambient is not None and ambient.boundaries is boundaries:
            _count(ambient, scope.reached)
        return output

    return _mark(forward, "layer")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _count(scope: Scope, reached: int) -> None:
    """Not traced: a compiled layer would be compiled anew for each value of the count."""
    scope.reached += reached


def _mixer(owner: type, original: Forward) -> Forward:
    names = list(inspect.signature(original).parameters)[1:]
    entry = mixer_of(owner)
    if entry is None:
        raise IsolationError(f"{owner.__module__}.{owner.__name__} is not a listed mixer")
    told, untold = takes_chunk(entry, original), replace(entry, chunk="")

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = _AMBIENT.scope
        if scope is None:
            return original(self, *args, **kwargs)
        if FLAG not in self.__dict__:
            raise IsolationError(
                f"a {owner.__name__} that is not isolated was called in a packed call: it was put into the model after "
                "isolate(), and documents would leak in it; call isolate(model) again"
            )
        if not scope.layer:
            raise IsolationError(f"{owner.__name__} was called in a packed call outside of an isolated layer")
        scope.reached += 1
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        return _by_document(self, original, entry if told() else untold, arguments, scope.boundaries)

    return _mark(forward, "mixer")


def _by_document(module: Any, original: Forward, entry: Mixer, arguments: dict[str, Any], boundaries: Boundaries) -> Any:
    """Runs the class's own forward once for each bucket, all within one ``__call__`` of the mixer.

    So hooks on the mixer, and on all around it, run once, on every rank alike: data parallelism by DDP, and sharding by
    layer or by mixer (FSDP), see nothing of the buckets. Hooks on the mixer's *children* run once a bucket, and ranks
    have different numbers of buckets. Where those hooks are collectives (FSDP around each Linear; ZeRO-3, which gathers
    parameters module by module), ranks would wait for each other for ever: shard no finer than the mixer. DeepSpeed:
    ``deepspeed.utils.set_z3_leaf_modules(model, [type(mixer)])``.
    """
    for name in CACHES:
        if arguments.get(name) is not None:
            raise IsolationError(
                f"{type(module).__name__} was given a cache ({name}) in a packed call: state of several documents "
                "cannot be kept in it; call with use_cache=False"
            )
    hidden = arguments.pop(entry.hidden)
    per_token = {name: arguments.pop(name) for name in entry.per_token if name in arguments}
    rest = {name: value for name, value in arguments.items() if name not in DROPPED}

    def call(documents: Any, cut: dict[str, Any]) -> Any:
        return original(module, **{entry.hidden: documents}, **cut, **rest, **short(entry, documents.shape[1]))

    return side_by_side(call, boundaries, hidden, per_token)


def short(entry: Mixer, length: int) -> dict[str, Any]:
    """The chunk length for a bucket of short documents, where a mixer can be told."""
    if not entry.chunk or length > CHUNK // 2:
        return {}
    return {entry.chunk: padded_length(length)}


def _backbone(owner: type, original: Forward) -> Forward:
    parameters = inspect.signature(original).parameters
    names = list(parameters)[1:]
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    family = family_of(owner)
    if family is None:
        raise IsolationError(f"{owner.__module__}.{owner.__name__} is not the text backbone of a known family")

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flag = self.__dict__.get(FLAG)
        if flag is None or flag.role != "backbone":
            return _unscoped(original, self, *args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        boundaries = None if describes_nothing(arguments) else resolve(arguments, recurrent=family.recurrent)
        if boundaries is None:
            return _unscoped(original, self, *args, **kwargs)
        if not boundaries.packed:
            # Causal layers need no help with one document a row, and generation its cache. Recurrent ones of newer
            # releases refuse descriptions of documents where they have no kernel for them.
            dropped = BOUNDARIES if family.recurrent else ()
            return _unscoped(original, self, **{name: value for name, value in arguments.items() if name not in dropped})
        if family.recurrent and os.environ.get("PATCHWORK_HYBRID_PACKING") == "0":
            raise IsolationError(
                f"a packed row reached {owner.__name__}, which has recurrent mixers, and PATCHWORK_HYBRID_PACKING=0 keeps "
                "those on padded batches: train it with packing=False, or unset the variable"
            )
        _carry_through_wrappers(self)
        _prepare(arguments, boundaries, family, masked(self), names, open_ended)
        scope = Scope(boundaries, layer=False)
        with _within(scope):
            output = original(self, **arguments)
        if scope.reached < flag.mixers:
            raise IsolationError(
                f"{owner.__name__} was isolated with {flag.mixers} recurrent mixers, {scope.reached} were reached in a packed "
                "call: a layer was skipped, or replaced after isolate(), so documents would leak; call isolate(model) again"
            )
        return output

    return _mark(forward, "backbone")


def _unscoped(original: Forward, backbone: Any, *args: Any, **kwargs: Any) -> Any:
    """An ordinary call, also of another model within a packed call of this one (from a hook, say)."""
    if _AMBIENT.scope is None:
        return original(backbone, *args, **kwargs)
    with _within(None):
        return original(backbone, *args, **kwargs)


def _prepare(
    arguments: dict[str, Any], boundaries: Boundaries, family: Family, masked: bool, names: list[str], open_ended: bool
) -> None:
    """Turns the arguments of a packed call into those that keep attention apart. What the caller gave stays."""
    for name in ("attention_mask", *CACHES):
        arguments.pop(name, None)
    if "use_cache" in names or open_ended:
        arguments["use_cache"] = False
    positions = arguments.get("position_ids")
    if positions is None:
        arguments["position_ids"] = boundaries.position_ids
    elif positions.ndim == 3 and positions.shape[0] == 3:
        if not family.text_plane:
            raise IsolationError(
                f"{family.name} takes no text plane before three-plane position_ids, so its attention cannot be told "
                "where documents start: give 2-D position_ids"
            )
        # Without a text plane the mask of attention would be built from no positions, or from those of images.
        text = boundaries.position_ids.to(positions.dtype)
        arguments["position_ids"] = _cat(text, positions)
    if not masked and open_ended:
        for name, value in boundaries.model_kwargs().items():
            if name not in ("seq_idx", "position_ids") and arguments.get(name) is None:
                arguments[name] = value


def _cat(text: Any, planes: Any) -> Any:
    return torch.cat([text[None], planes.expand(-1, text.shape[0], -1)])


def _carry_through_wrappers(backbone: Any) -> None:
    """Modules that were put around layers since (activation checkpointing of torch, FSDP, compile) carry boundaries on.

    Such a wrapper may call the layer again in the backward pass, so they must be in its own arguments too. A module that
    holds no isolated layer is no wrapper: it took a layer's place.
    """
    for name in backbone.__dict__[FLAG].layers:
        try:
            wrapper = backbone.get_submodule(name)
        except AttributeError:
            raise IsolationError(f"{name} is gone since isolate(): call isolate(model) again") from None
        if FLAG not in wrapper.__dict__:
            if not any(FLAG in module.__dict__ for module in wrapper.modules()):
                raise IsolationError(
                    f"{name} ({type(wrapper).__name__}) is not isolated: it was put into the model after isolate(), and "
                    "documents would leak in it; call isolate(model) again"
                )
            install(type(wrapper), "carrier")
            wrapper.__dict__[FLAG] = Flag(type(wrapper), "carrier")


def _guarded(owner: type, original: Forward) -> Forward:
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flag = self.__dict__.get(FLAG)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        if flag is not None and flag.role == "guard" and not describes_nothing(arguments):
            # A mask that the caller prepared does not speak for mixers that nobody knows. With nothing but positions
            # beside it, though, it is how generation calls a model on a left-padded batch.
            if not _plain(arguments.get("attention_mask")) and not describes_nothing({**arguments, "position_ids": None}):
                arguments.pop("attention_mask")
            boundaries = resolve(arguments, recurrent=False)
            if boundaries is not None and boundaries.packed:
                raise IsolationError(
                    f"a row of {boundaries.num_documents} documents reached {owner.__name__}: {flag.reason}. "
                    "Train it on padded batches (packing=False)"
                )
        return original(self, *args, **kwargs)

    return _mark(forward, "guard")


def _plain(mask: Any) -> bool:
    return mask is None or (isinstance(mask, torch.Tensor) and mask.ndim == 2)


def masked(backbone: Any) -> bool:
    """Whether attention is kept apart by a mask (else by varlen arguments)."""
    chosen = getattr(getattr(backbone, "config", None), "_attn_implementation", None)
    return chosen in (None, "sdpa", "eager", "flex_attention")
