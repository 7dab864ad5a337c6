"""The forward of a mixer in a packed call: by its kernels, or on the documents side by side."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..argument_names import CACHES
from ..boundaries import Boundaries
from ..errors import IsolationError
from ..models.families import released, written
from ..models.kernels import arguments_for, closed_here, gap, resets
from ..models.mixers import DROPPED, Mixer, fast_kernels, takes_chunk
from .call_scope import ALONE, LAYER, NATIVE, Scope, packed_scope, within
from .document_batching import chunk_length, side_by_side
from .handshake import confirm
from .markers import FLAG, Forward, flag_of, tagged
from .recompute import refuse_recompute, unscoped


def mixer_forward(owner: type, original: Forward, entry: Mixer) -> Forward:
    """The forward of a mixer class, which keeps documents apart in packed calls of isolated instances."""
    parameters = inspect.signature(written(original)).parameters
    if fast_kernels() or not released(entry.causal_since):  # kernels have chunks of their own
        entry = replace(entry, chunk="", chunks="")
    call = _Call(entry, tuple(parameters)[1:], _required(parameters, entry))
    told, unchunked = takes_chunk(entry, original), replace(call, entry=replace(entry, chunk=""))
    states, closed = resets(entry), closed_here(entry)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = packed_scope()
        if scope is None:
            if unscoped():
                refuse_recompute(self)
            return original(self, *args, **kwargs)
        flag = flag_of(self)
        if flag is None:
            raise IsolationError(
                f"a {owner.__name__} that is not isolated was called in a packed call: it was put into the model after "
                "isolate(), and documents would leak in it; call isolate(model) again"
            )
        if scope.extent != LAYER:
            raise IsolationError(f"{owner.__name__} was called in a packed call outside of an isolated layer")
        scope.reached += 1
        if states and flag.native and not (closed or gap(self, entry, scope.boundaries)):
            return _native(self, original, call, call.bound(args, kwargs), scope.boundaries)
        scope.reached += flag.mixers
        arguments = call.bound(args, kwargs)
        return _by_document(self, original, call if told() else unchunked, arguments, scope.boundaries)

    return tagged(forward, "mixer")


@dataclass(frozen=True)
class _Call:
    """How a mixer class is called: `names` of its parameters, `required` those of them without a default."""

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
    code = written(forward).__code__
    return bool(code.co_flags & inspect.CO_VARKEYWORDS) or name in code.co_varnames


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _by_document(module: Any, original: Forward, call: _Call, arguments: dict[str, Any], boundaries: Boundaries) -> Any:
    """Runs the class's own forward once for each bucket, all within one `__call__` of the mixer.

    Not compiled: each row has buckets of other shapes, for which code would be compiled anew, until torch gives up.

    So hooks on the mixer, and on all around it, run once, on every rank alike: data parallelism by DDP, and sharding by
    layer or by mixer (FSDP), see nothing of the buckets. Hooks on the mixer's *children* run once a bucket, and ranks
    have different numbers of buckets. Where those hooks are collectives (FSDP around each Linear; ZeRO-3, which gathers
    parameters module by module), ranks would wait for each other for ever: shard no finer than the mixer. DeepSpeed:
    `deepspeed.utils.set_z3_leaf_modules(model, [type(mixer)])`.
    """
    entry = call.entry
    hidden = arguments.pop(entry.hidden)
    per_token = {name: arguments.pop(name) for name in entry.per_token if name in arguments}
    masks = {name: _over_row(arguments.pop(name), hidden.shape[1]) for name in entry.masks if name in arguments}
    rest = call.rest(module, arguments)

    def run(documents: Any, cut: dict[str, Any]) -> Any:
        _forget(module, entry.stale)
        with within(Scope(boundaries, ALONE)):
            twin = _with_chunks(module, entry, documents.shape[1])
            output = original(twin, **{entry.hidden: documents}, **cut, **rest, **short(entry, documents.shape[1]))
        _forget(module, entry.stale)
        if not entry.results or not isinstance(output, tuple):
            return output
        return tuple(element if at in entry.results else None for at, element in enumerate(output))

    return side_by_side(run, boundaries, hidden, per_token, masks=masks, padded=released(entry.causal_since))


def _over_row(mask: Any, length: int) -> Any:
    """A mask over a window that is longer than the row has nothing behind it."""
    return mask[..., :length] if isinstance(mask, torch.Tensor) and mask.ndim == 4 else mask


def _forget(module: Any, stale: str) -> None:
    """Some releases go on from the state of the last call, whatever its batch, or keep its graph."""
    if stale:
        owner, _, name = stale.rpartition(".")
        setattr(module.get_submodule(owner), name, None)


def short(entry: Mixer, length: int) -> dict[str, Any]:
    """The chunk length for a bucket of documents, where a mixer takes it as an argument."""
    return {entry.chunk: chunk_length(length)} if entry.chunk else {}


def _with_chunks(module: Any, entry: Mixer, length: int) -> Any:
    """A mixer that has its chunk length as an attribute, with one that suits a bucket: the same module but for that.

    Not set on the module: other threads may be in it.
    """
    if not entry.chunks or torch.compiler.is_compiling():
        return module
    own = getattr(module, entry.chunks)
    if chunk_length(length) >= own:
        return module
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__, **{entry.chunks: chunk_length(length)})
    return twin
