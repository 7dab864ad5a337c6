"""The wrappers on classes by which boundaries get through a model, and what its modules do with them.

Classes get one wrapper each, instances a flag; without the flag a call goes straight to the original. Boundaries are never
read from a module: they go by a variable of the thread, set for the extent of a call, and what activation checkpointing will
run again carries it (patchwork.packing.runtime.recompute).

    head.forward       keeps ready what it was called with, since not every head hands it on
    backbone.forward   reads the boundaries out of the call, sets positions and masks
    layer.forward      counts the mixers that it reached
    mixer.forward      hands boundaries to its kernels, or runs on the documents side by side
    attention          does so behind transformers' registries: patchwork.packing.runtime.attention
"""

from __future__ import annotations

import copyreg
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

from ..argument_names import BOUNDARIES, CACHES
from ..boundaries import Boundaries
from ..errors import IsolationError
from ..models.dispatch import TREES, flash, implementation_of
from ..models.families import Family
from ..models.known_code import backbone_family
from ..models.mixers import Mixer
from ..settings import hybrid_packing
from .added_parts import adapters_reason, refuse_added, refuse_added_beside
from .attention import open_doors
from .call_boundaries import describes_nothing, resolve, resolve_unknown
from .call_masks import is_prepared, without_numbers
from .call_scope import AMBIENT, BACKBONE, LAYER, Scope, packed_scope, telling, within
from .lost_boundaries import STEP, refuse_lost
from .markers import FLAG, UNPADS, Flag, Forward, flag_of, tagged
from .mixer_forward import mixer_forward
from .recompute import carry, refuse_recompute, unscoped, watch
from .unpadding import take_out

# ---- wrappers on classes ----------------------------------------------------------------------------------------


def install(flag: Flag) -> None:
    """Puts the wrapper of a role on a class, once."""
    carry()
    owner: Any = flag.owner
    role = flag.role
    if role == "attention":
        open_doors(owner)
        return
    if _wrapped(owner.forward, role):
        return
    hook = _forward_hook(owner) if role == "layer" else None
    if hook is None:
        owner.forward = _made(flag, owner.forward)
    else:
        # Releases that checkpoint inside `forward` compare `type(self).forward` with the function they installed.
        # So the wrapper goes below theirs, and theirs is put on again by the hook that puts it on any new class.
        owner.forward = _made(flag, owner.forward.__wrapped__)
        hook()


def _arrived(*values: Any) -> Flag:
    flag = Flag(*values)
    install(flag)
    return flag


copyreg.pickle(Flag, lambda flag: (_arrived, tuple(getattr(flag, field.name) for field in fields(flag))))


def _forward_hook(owner: Any) -> Callable[[], None] | None:
    """What puts checkpointing around the forward of a layer class, in releases that do it there."""
    base = next((kind for kind in owner.__mro__ if kind.__name__ == "GradientCheckpointingLayer"), None)
    return super(owner, owner).__init_subclass__ if base is not None and "__init_subclass__" in vars(base) else None


def _made(flag: Flag, original: Forward) -> Forward:
    if isinstance(flag.entry, Mixer):
        return mixer_forward(flag.owner, original, flag.entry)
    if isinstance(flag.entry, Family):
        return _backbone(flag.owner, original, flag.entry)
    makers = {"layer": _layer, "guard": _guarded, "head": _head}
    return makers[flag.role](flag.owner, original)


def _wrapped(function: Any, role: str) -> bool:
    while function is not None:
        if role in function.__dict__.get("__patchwork_roles__", ()):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _layer(owner: type, original: Forward) -> Forward:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = packed_scope()
        flag = flag_of(self)
        if flag is None or outer is None:
            if flag is not None and unscoped():
                refuse_recompute(self)
            return original(self, *args, **kwargs)
        scope = Scope(outer.boundaries, LAYER)
        with within(scope):
            output = original(self, *args, **kwargs)
        if scope.reached < flag.mixers:
            raise IsolationError(
                f"a {owner.__name__} has {flag.mixers} token mixers, {scope.reached} were reached in a packed call: "
                "the forward of a mixer was replaced on the instance (kernelize?), so documents would leak"
            )
        if scope.reached:
            _count(outer, scope.reached)
        return output

    return tagged(forward, "layer")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _count(scope: Scope, reached: int) -> None:
    """Not traced: a compiled layer would be compiled anew for each value of the count."""
    scope.reached += reached


def _head(owner: type, original: Forward) -> Forward:
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        flag = flag_of(self)
        beside = not torch.compiler.is_compiling()  # compiled, only a recurrent backbone leaves its graph for a prepared mask
        told = None if flag is None or flag.role != "head" or describes_nothing(arguments, beside) else arguments
        if told is None and AMBIENT.told is None:
            return original(self, *args, **kwargs)
        if told is not None:
            refuse_added_beside(self, told)
        AMBIENT.detached = False
        with telling(told and _with_logits_to_keep(told)):
            output = original(self, *args, **kwargs)
        if AMBIENT.detached:
            watch(self, output, detached=True)
        return output

    return tagged(forward, "head")


def _with_logits_to_keep(arguments: dict[str, Any]) -> dict[str, Any]:
    """With those of the model around this one, which hands them on to none inside of it."""
    return {"logits_to_keep": (AMBIENT.told or {}).get("logits_to_keep"), **arguments}


def _backbone(owner: type, original: Forward, family: Family) -> Forward:
    parameters = inspect.signature(original).parameters
    names = list(parameters)[1:]
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flag = flag_of(self)
        if flag is None or flag.role != "backbone" or (not family.recurrent and implementation_of(self) == TREES):
            return _unscoped(original, self, *args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        heard = _heard(arguments)
        boundaries = None if describes_nothing(heard, family.recurrent) else resolve(heard, family.recurrent)
        if boundaries is None:
            if STEP.described:
                refuse_lost(self, arguments)
            taken = None
            if UNPADS in self.__dict__ and not _why_not_packed(owner, family, self, arguments):
                taken = take_out(self, arguments, heard, family)
            if taken is None:
                return _unscoped(original, self, *args, **kwargs)
            return taken.put_back(run(self, taken.arguments, taken.arguments, taken.boundaries))
        return run(self, arguments, heard, boundaries)

    def run(self: Any, arguments: dict[str, Any], heard: dict[str, Any], boundaries: Boundaries) -> Any:
        if not boundaries.packed:
            # With one document a row nothing leaks, and generation needs its cache, so the original runs. Recurrent layers of
            # newer releases refuse boundaries where they have no kernel for them.
            dropped = BOUNDARIES if family.recurrent else ()
            left = {name: value for name, value in arguments.items() if name not in dropped}
            return _unscoped(original, self, **without_numbers(left))
        if reason := _why_not_packed(owner, family, self, arguments):
            raise IsolationError(reason)
        if backbone_family(self) is not None:
            refuse_added(self, family)
        _prepare(arguments, heard, boundaries, family, names, open_ended)
        scope = Scope(boundaries, BACKBONE, row_masks=family.row_masks)
        with within(scope), telling(None):
            output = original(self, **arguments)
        AMBIENT.detached = not watch(self, output)
        mixers = self.__dict__[FLAG].mixers
        if scope.reached < mixers:
            raise IsolationError(
                f"{owner.__name__} was isolated with {mixers} token mixers, {scope.reached} were reached in a packed "
                "call: a layer was skipped, or replaced after isolate(), so documents would leak; call isolate(model) again"
            )
        return output

    return tagged(forward, "backbone")


def _heard(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a backbone's call, with what the model around it was told and did not hand on."""
    told = AMBIENT.told
    if not told:
        return arguments
    missing = {name: value for name, value in told.items() if name in _DESCRIBING and arguments.get(name) is None}
    if _made_by_the_head(arguments.get("attention_mask"), told):
        missing["attention_mask"] = told.get("attention_mask")
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


def _made_by_the_head(mask: Any, told: Mapping[str, Any]) -> bool:
    """Whether a prepared mask is of the model's own making, from text alone: of images it says more than positions do."""
    beside_text = any(name.startswith(("pixel_", "image", "video", "audio")) and told[name] is not None for name in told)
    # Types of tokens mark images that are embedded already, or a prefix that is seen in both directions.
    types = [value for name, value in told.items() if name.endswith("token_type_ids") and isinstance(value, torch.Tensor)]
    beside_text = beside_text or any(bool(value.any()) for value in types)
    return is_prepared(mask) and not is_prepared(told.get("attention_mask")) and not beside_text


_DESCRIBING = (*BOUNDARIES, "position_ids", "attention_mask", "labels", "logits_to_keep")


def _why_not_packed(owner: type, family: Family, backbone: Any, arguments: dict[str, Any]) -> str:
    """Why a backbone cannot run a packed call as it stands; nothing if it can."""
    config = getattr(backbone, "config", None)
    asked = arguments.get("output_attentions")
    if asked or (asked is None and getattr(config, "output_attentions", False)):
        return (
            f"{owner.__name__} was asked for attention weights in a packed call, where attention runs on documents side by "
            "side: call without output_attentions"
        )
    if (reason := adapters_reason(backbone)) is not None:
        return f"a packed row reached {owner.__name__}: {reason}"
    if not family.recurrent:
        return ""
    if not hybrid_packing():
        return (
            f"a packed row reached {owner.__name__}, which has recurrent mixers, and PATCHWORK_HYBRID_PACKING=0 keeps "
            "those on padded batches: train it with packing=False, or unset the variable"
        )
    if not family.flash and flash(implementation_of(backbone)):
        return (
            f"a packed row reached {owner.__name__} with attn_implementation="
            f"{implementation_of(backbone)!r}, whose calls do not say where documents begin: use 'sdpa'"
        )
    return ""


def _unscoped(original: Forward, backbone: Any, *args: Any, **kwargs: Any) -> Any:
    """An ordinary call, also of another model within a packed call of this one (from a hook, say)."""
    if unscoped():
        refuse_recompute(backbone, whole=True)
    elif AMBIENT.scope is None and AMBIENT.told is None:
        return original(backbone, *args, **kwargs)
    with within(Scope.ordinary()), telling(None):
        return original(backbone, *args, **kwargs)


def _prepare(
    arguments: dict[str, Any],
    heard: dict[str, Any],
    boundaries: Boundaries,
    family: Family,
    names: list[str],
    open_ended: bool,
) -> None:
    """Turns the arguments of a packed call into those of a row without padding and cache, whose positions restart."""
    for name in ("attention_mask", *CACHES):
        arguments.pop(name, None)
    if "use_cache" in names or open_ended:
        arguments["use_cache"] = False
    if "position_ids" in names:
        arguments["position_ids"] = _positions(heard.get("position_ids"), boundaries, family)
    else:
        arguments.pop("position_ids", None)
    if not open_ended:
        for name in [name for name in arguments if name in BOUNDARIES and name not in names]:
            del arguments[name]


def _positions(given: Any, boundaries: Boundaries, family: Family) -> Any:
    if given is None:
        return boundaries.position_ids
    if given.ndim == 3 and given.shape[0] == 4 and not family.text_plane:
        return given[0]
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


def mark(module: Any, flag: Flag) -> None:
    """Flags one module."""
    install(flag)
    module.__dict__[FLAG] = flag


def _guarded(owner: type, original: Forward) -> Forward:
    names = list(inspect.signature(original).parameters)[1:]

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        flag = flag_of(self)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        if flag is None or flag.role != "guard" or describes_nothing(arguments, recurrent=False, known=False):
            return original(self, *args, **kwargs)
        arguments = _with_logits_to_keep(arguments)
        boundaries = resolve_unknown(arguments)
        if boundaries is not None and boundaries.packed:
            raise IsolationError(
                f"a row of {boundaries.num_documents} documents reached {owner.__name__}: {flag.reason}. "
                "Train it on padded batches (packing=False)"
            )
        with telling(arguments):
            return original(self, *args, **kwargs)

    return tagged(forward, "guard")
