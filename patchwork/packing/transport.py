"""How do boundaries travel through a model, and what do its modules do with them?

Classes get one wrapper each, instances a flag; without the flag a call goes straight to the original. Boundaries travel
in the arguments of each layer's call, so that gradient checkpointing, which runs a layer again, hands it its own; they
are never read from a module. From a layer's forward to its mixers they go by a variable of the thread, set for that extent.

    head.forward       keeps ready what it was called with, since not every head hands it on
    backbone.forward   reads the boundaries out of the call, sets positions and masks
    layer.__call__     puts them into the call, outside of checkpointing
    layer.forward      takes them out, inside of it
    mixer.forward      hands them to its kernels, or runs on the documents side by side
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from patchwork.packing.ambient import ALONE, AMBIENT, BACKBONE, LAYER, NATIVE, Scope, telling, within
from patchwork.packing.arguments import BOUNDARIES, CACHES
from patchwork.packing.batching import CHUNK, padded_length, side_by_side
from patchwork.packing.boundaries import Boundaries, IsolationError
from patchwork.packing.families import Family, released
from patchwork.packing.handshake import confirm
from patchwork.packing.kernels import arguments_for, closed_here, gap, resets
from patchwork.packing.mixers import DROPPED, Mixer, takes_chunk
from patchwork.packing.resolution import describes_nothing, resolve

KEYWORD = "patchwork_boundaries"
FLAG = "_patchwork_isolation"

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Flag:
    """What marks an instance. It travels with copies and pickles, and puts the wrapper on the class where it arrives.

    ``entry``: the family of a backbone, or what is known of a mixer.
    ``mixers``: how many a layer, or a whole backbone, must reach, or a mixer holds. ``layers``: the names of a backbone's
    layers. ``reason``: why a guarded model refuses packed rows. ``path``: of a mixer within its backbone. ``native``:
    whether it may leave documents to its kernels.
    """

    owner: type
    role: str
    entry: Family | Mixer | None = None
    mixers: int = 0
    layers: tuple[str, ...] = ()
    reason: str = ""
    path: str = ""
    native: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        return _flag, tuple(getattr(self, field) for field in self.__dataclass_fields__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Flag:
        return self


def _flag(*fields: Any) -> Flag:
    flag = Flag(*fields)
    install(flag)
    return flag


# ---- wrappers on classes ----------------------------------------------------------------------------------------


def install(flag: Flag) -> None:
    """Puts the wrapper of a role on a class, once."""
    owner: Any = flag.owner
    role = flag.role
    if role == "layer" and not _checkpointing(owner):
        if not isinstance(vars(owner).get("__call__"), _Carrying):
            owner.__call__ = _Carrying(owner.__call__)
    elif role in ("layer", "carrier") and not _wrapped(owner.__call__, "carrier"):
        owner.__call__ = _carrier(owner.__call__)
    if role == "layer" and "__init_subclass__" in _checkpointing(owner):
        # Releases that checkpoint inside ``forward`` compare ``type(self).forward`` with the function they installed.
        # So the wrapper goes below theirs, and theirs is put on again by the hook that puts it on any new class.
        inner = owner.forward.__wrapped__
        if not _wrapped(owner.forward, role):
            owner.forward = _receiver(owner, inner)
            super(owner, owner).__init_subclass__()
    elif role != "carrier" and not _wrapped(owner.forward, role):
        owner.forward = _made(flag, owner.forward)


def _made(flag: Flag, original: Forward) -> Forward:
    if isinstance(flag.entry, Mixer):
        return _mixer(flag.owner, original, flag.entry)
    if isinstance(flag.entry, Family):
        return _backbone(flag.owner, original, flag.entry)
    makers = {"layer": _receiver, "guard": _guarded, "head": _head}
    return makers[flag.role](flag.owner, original)


def _checkpointing(owner: type) -> dict[str, Any]:
    for kind in owner.__mro__:
        if kind.__name__ == "GradientCheckpointingLayer":
            return dict(vars(kind))
    return {}


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


def _carrier(original: Forward) -> Forward:
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if FLAG in self.__dict__ and KEYWORD not in kwargs and (scope := _packed_scope()) is not None:
            kwargs[KEYWORD] = scope.boundaries
        return original(self, *args, **kwargs)

    return _mark(__call__, "carrier")


def _packed_scope() -> Scope | None:
    scope = AMBIENT.scope
    return scope if scope is not None and scope.extent != ALONE else None


class _Carrying:
    """The ``__call__`` of layers that a model hands to its checkpointing function as ``layer.__call__``.

    The function calls it again in the backward pass, when no packed call is going on; so boundaries are bound to it as
    it is fetched, not as it is called.
    """

    def __init__(self, original: Forward) -> None:
        self.original = original

    def __get__(self, instance: Any, owner: type) -> Any:
        bound = self.original if instance is None else self.original.__get__(instance, owner)
        if instance is None or FLAG not in instance.__dict__ or (scope := _packed_scope()) is None:
            return bound
        return functools.partial(bound, **{KEYWORD: scope.boundaries})


def _receiver(owner: type, original: Forward) -> Forward:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        boundaries = kwargs.pop(KEYWORD, None)
        ambient = _packed_scope()
        flag = self.__dict__.get(FLAG)
        if flag is None or (boundaries is None and ambient is None):
            return original(self, *args, **kwargs)
        if boundaries is None:
            raise IsolationError(
                f"{owner.__name__}.forward was called in a packed call without going through the module's __call__, so "
                "a recompute in the backward pass would not know the documents: call the layer itself"
            )
        scope = Scope(boundaries, LAYER)
        with within(scope):
            output = original(self, *args, **kwargs)
        if scope.reached < flag.mixers:
            raise IsolationError(
                f"a {owner.__name__} has {flag.mixers} token mixers, {scope.reached} were reached in a packed call: "
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


def _mixer(owner: type, original: Forward, entry: Mixer) -> Forward:
    parameters = inspect.signature(original).parameters
    call = _Call(entry, tuple(parameters)[1:], _required(parameters, entry))
    told, unchunked = takes_chunk(entry, original), replace(call, entry=replace(entry, chunk=""))
    states, closed = resets(entry), closed_here(entry)
    right_masks = entry.attention and released(entry.masked_since)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = _packed_scope()
        if scope is None:
            return original(self, *args, **kwargs)
        flag = self.__dict__.get(FLAG)
        if flag is None:
            raise IsolationError(
                f"a {owner.__name__} that is not isolated was called in a packed call: it was put into the model after "
                "isolate(), and documents would leak in it; call isolate(model) again"
            )
        if scope.extent != LAYER:
            raise IsolationError(f"{owner.__name__} was called in a packed call outside of an isolated layer")
        scope.reached += 1
        if right_masks and masked(self):
            return original(self, *args, **kwargs)
        if states and flag.native and not (closed or gap(self, entry, scope.boundaries)):
            return _native(self, original, call, call.bound(args, kwargs), scope.boundaries)
        scope.reached += flag.mixers
        arguments = call.bound(args, kwargs)
        return _by_document(self, original, call if told() else unchunked, arguments, scope.boundaries)

    return _mark(forward, "mixer")


@dataclass(frozen=True)
class _Call:
    """How a mixer class is called: ``names`` of its parameters, ``required`` those of them without a default."""

    entry: Mixer
    names: tuple[str, ...]
    required: tuple[str, ...]

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def rest(self, module: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """What is left of the arguments for documents on their own, once those per token are taken out."""
        for name in CACHES:
            if arguments.get(name) is not None:
                raise IsolationError(
                    f"{type(module).__name__} was given a cache ({name}) in a packed call: state of several documents "
                    "cannot be kept in it; call with use_cache=False"
                )
        if arguments.get("output_attentions") and self.entry.attention:
            raise IsolationError(
                f"{type(module).__name__} was asked for attention weights in a packed call, but it runs on documents side by "
                "side there: call without output_attentions"
            )
        kept = {name: value for name, value in arguments.items() if name not in DROPPED}
        if "use_cache" in self.names:
            kept["use_cache"] = False
        return {**{name: None for name in self.required if name not in kept}, **kept}


def _required(parameters: Any, entry: Mixer) -> tuple[str, ...]:
    """Names of parameters that must be given, but may be None when a document is on its own."""
    dropped = [name for name in DROPPED if name not in (*entry.per_token, *entry.masks)]
    return tuple(name for name, parameter in parameters.items() if name in dropped and parameter.default is parameter.empty)


def _native(module: Any, original: Forward, call: _Call, arguments: dict[str, Any], boundaries: Boundaries) -> Any:
    """Runs the class's own forward on the row, and sees that its kernels were told the boundaries."""
    entry = call.entry
    hidden = arguments.pop(entry.hidden)
    per_token = {name: arguments.pop(name) for name in entry.per_token if name in arguments}
    told = {name: value for name, value in arguments_for(boundaries).items() if _takes(original, name)}
    scope = Scope(boundaries, NATIVE, module.__dict__[FLAG].path)
    with within(scope):
        output = original(module, **{entry.hidden: hidden}, **per_token, **call.rest(module, arguments), **told)
    confirm(scope, resets(entry))
    return output


def _takes(forward: Forward, name: str) -> bool:
    code = inspect.unwrap(forward).__code__
    return bool(code.co_flags & inspect.CO_VARKEYWORDS) or name in code.co_varnames


def _by_document(module: Any, original: Forward, call: _Call, arguments: dict[str, Any], boundaries: Boundaries) -> Any:
    """Runs the class's own forward once for each bucket, all within one ``__call__`` of the mixer.

    So hooks on the mixer, and on all around it, run once, on every rank alike: data parallelism by DDP, and sharding by
    layer or by mixer (FSDP), see nothing of the buckets. Hooks on the mixer's *children* run once a bucket, and ranks
    have different numbers of buckets. Where those hooks are collectives (FSDP around each Linear; ZeRO-3, which gathers
    parameters module by module), ranks would wait for each other for ever: shard no finer than the mixer. DeepSpeed:
    ``deepspeed.utils.set_z3_leaf_modules(model, [type(mixer)])``.
    """
    entry = call.entry
    hidden = arguments.pop(entry.hidden)
    per_token = {name: arguments.pop(name) for name in entry.per_token if name in arguments}
    masks = {name: arguments.pop(name) for name in entry.masks if name in arguments}
    rest = call.rest(module, arguments)

    def run(documents: Any, cut: dict[str, Any]) -> Any:
        _forget(module, entry.stale)
        with within(Scope(boundaries, ALONE)):
            output = original(module, **{entry.hidden: documents}, **cut, **rest, **short(entry, documents.shape[1]))
        _forget(module, entry.stale)
        if not entry.results or not isinstance(output, tuple):
            return output
        return tuple(element if at in entry.results else None for at, element in enumerate(output))

    return side_by_side(run, boundaries, hidden, per_token, masks=masks)


def _forget(module: Any, stale: str) -> None:
    """Some releases go on from the state of the last call, whatever its batch, or keep its graph."""
    if stale:
        owner, _, name = stale.rpartition(".")
        setattr(module.get_submodule(owner), name, None)


def short(entry: Mixer, length: int) -> dict[str, Any]:
    """The chunk length for a bucket of short documents, where a mixer can be told."""
    if not entry.chunk or length > CHUNK // 2:
        return {}
    return {entry.chunk: padded_length(length)}


def _head(owner: type, original: Forward) -> Forward:
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        flag = self.__dict__.get(FLAG)
        told = None if flag is None or flag.role != "head" or describes_nothing(arguments) else arguments
        if told is None and AMBIENT.told is None:
            return original(self, *args, **kwargs)
        with telling(told):
            return original(self, *args, **kwargs)

    return _mark(forward, "head")


def _backbone(owner: type, original: Forward, family: Family) -> Forward:
    parameters = inspect.signature(original).parameters
    names = list(parameters)[1:]
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flag = self.__dict__.get(FLAG)
        if flag is None or flag.role != "backbone":
            return _unscoped(original, self, *args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        heard = _heard(arguments)
        boundaries = None if describes_nothing(heard) else resolve(heard, recurrent=family.recurrent)
        if boundaries is None:
            return _unscoped(original, self, *args, **kwargs)
        if not boundaries.packed:
            # Causal layers need no help with one document a row, and generation its cache. Recurrent ones of newer
            # releases refuse descriptions of documents where they have no kernel for them.
            dropped = BOUNDARIES if family.recurrent else ()
            return _unscoped(original, self, **{name: value for name, value in arguments.items() if name not in dropped})
        _refuse_what_cannot_be(owner, family, self)
        _carry_through_wrappers(self)
        _prepare(arguments, heard, boundaries, family, masked(self), names, open_ended)
        scope = Scope(boundaries, BACKBONE)
        with within(scope), telling(None):
            output = original(self, **arguments)
        if scope.reached < flag.mixers:
            raise IsolationError(
                f"{owner.__name__} was isolated with {flag.mixers} token mixers, {scope.reached} were reached in a packed "
                "call: a layer was skipped, or replaced after isolate(), so documents would leak; call isolate(model) again"
            )
        return output

    return _mark(forward, "backbone")


def _heard(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a backbone's call, with what the model around it was told and did not hand on."""
    told = AMBIENT.told
    if not told:
        return arguments
    missing = {name: value for name, value in told.items() if name in _DESCRIBING and arguments.get(name) is None}
    if describes_nothing({**arguments, **missing}):
        return arguments
    sizes = {
        tuple(each.shape[:2])
        for call in (told, arguments)
        for name in ("input_ids", "inputs_embeds")
        if isinstance(each := call.get(name), torch.Tensor)
    }
    if len(sizes) == 1:
        return {**arguments, **missing}
    found = resolve(dict(told), recurrent=False)
    if found is not None and found.packed:
        raise IsolationError(
            f"a packed row of {found.num_documents} documents reached the model, but its text backbone is called with tokens "
            f"of another shape ({', '.join(map(str, sorted(sizes)))}): boundaries cannot be carried over"
        )
    return arguments


_DESCRIBING = (*BOUNDARIES, "position_ids", "attention_mask")


def _refuse_what_cannot_be(owner: type, family: Family, backbone: Any) -> None:
    if not family.recurrent:
        return
    if os.environ.get("PATCHWORK_HYBRID_PACKING") == "0":
        raise IsolationError(
            f"a packed row reached {owner.__name__}, which has recurrent mixers, and PATCHWORK_HYBRID_PACKING=0 keeps "
            "those on padded batches: train it with packing=False, or unset the variable"
        )
    if not family.flash and not masked(backbone):
        raise IsolationError(
            f"a packed row reached {owner.__name__} with attn_implementation="
            f"{backbone.config._attn_implementation!r}, whose calls do not say where documents begin: use 'sdpa'"
        )


def _unscoped(original: Forward, backbone: Any, *args: Any, **kwargs: Any) -> Any:
    """An ordinary call, also of another model within a packed call of this one (from a hook, say)."""
    if AMBIENT.scope is None and AMBIENT.told is None:
        return original(backbone, *args, **kwargs)
    with within(None), telling(None):
        return original(backbone, *args, **kwargs)


def _prepare(
    arguments: dict[str, Any],
    heard: dict[str, Any],
    boundaries: Boundaries,
    family: Family,
    masked: bool,
    names: list[str],
    open_ended: bool,
) -> None:
    """Turns the arguments of a packed call into those that keep attention apart. What the caller gave stays."""
    for name in ("attention_mask", *CACHES):
        arguments.pop(name, None)
    if "use_cache" in names or open_ended:
        arguments["use_cache"] = False
    if "position_ids" in names:
        arguments["position_ids"] = _positions(heard.get("position_ids"), boundaries, family)
    else:
        arguments.pop("position_ids", None)
    if not masked and open_ended:
        for name, value in boundaries.model_kwargs().items():
            if name not in ("seq_idx", "position_ids") and arguments.get(name) is None:
                arguments[name] = value
    if not open_ended:
        for name in [name for name in arguments if name in BOUNDARIES and name not in names]:
            del arguments[name]


def _positions(given: Any, boundaries: Boundaries, family: Family) -> Any:
    if given is None:
        return boundaries.position_ids
    if given.ndim != 3 or given.shape[0] != 3:
        return given
    if not family.text_plane:
        raise IsolationError(
            f"{family.name} takes no text plane before three-plane position_ids, so its attention cannot be told "
            "where documents start: give 2-D position_ids"
        )
    # Without a text plane the mask of attention would be built from no positions, or from those of images.
    return _cat(boundaries.position_ids.to(given.dtype), given)


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
            mark(wrapper, Flag(type(wrapper), "carrier"))


def mark(module: Any, flag: Flag) -> None:
    """Flags one module."""
    install(flag)
    module.__dict__[FLAG] = flag


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
