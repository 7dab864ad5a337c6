"""Isolates a model: finds the modules that keep its documents apart, checks that all are known, and marks them.

`isolate` validates a model and flags its modules; patchwork.packing.runtime.wrappers holds the code that the flags turn on.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import MethodType
from typing import Any

from torch.nn import Embedding, ModuleList

from .errors import IsolationError
from .models.adapters import acting_reason
from .models.dispatch import FLEX, flash, implementation_of
from .models.kernels import gap
from .models.known_code import anatomy_of, backbone_family, refuse_beside, takes_text
from .models.mixers import Mixer
from .models.refusal_reasons import closed, why_not
from .models.unknown_code import anatomy_by_structure
from .runtime.markers import FLAG, UNPADS, Flag
from .runtime.wrappers import mark

BATCHING = "document batching"
NATIVE = "native kernels"
VARLEN = "varlen arguments"
BLOCK_MASK = "block mask"


@dataclass(frozen=True)
class Part:
    """One module of an isolated model, and the way its documents are kept apart. `why`: why that way, where there is
    a faster one."""

    module: str
    kind: str
    role: str
    way: str
    why: str = ""


# ---- public -----------------------------------------------------------------------------------------------------


def isolate(model: Any, native: bool = True) -> tuple[Part, ...]:
    """Keeps the documents of packed rows apart in `model` (any nn.Module with a known text backbone inside).

    `native`: whether mixers may leave that to varlen kernels which are told the boundaries; without it, all recurrent
    mixers run on documents side by side. Returns what it did, module by module. Calls that are not packed stay
    bit-identical. Doing it twice is doing it once. All modules are validated before the first is changed. Raises
    IsolationError for a family or a recurrent mixer that is not known, naming it, and for an adapter that acts and does not
    work on each token alone; one that is activated later raises in the packed call.
    """
    if (reason := acting_reason(model)) is not None:
        raise IsolationError(f"{type(model).__name__} cannot be isolated: {reason}")
    return _isolate(model, native)


def _isolate(model: Any, native: bool = True) -> tuple[Part, ...]:
    flags, parts = _planned(model, native)
    for module, flag in flags:
        mark(module, flag)
        _rebind(module)
    return parts


def validate(model: Any) -> tuple[Part, ...]:
    """What `isolate` would do; raises what it would raise, and changes nothing."""
    return _planned(model, True)[1]


def restore(model: Any) -> None:
    """Undoes `isolate` and guards: the model's calls go straight to the original code again.

    The model is then as it was before `patchwork.apply()`: a trainer that is given it later isolates it again.
    """
    for module in model.modules():
        module.__dict__.pop(FLAG, None)
        module.__dict__.pop(UNPADS, None)


def isolated(model: Any) -> bool:
    """Whether some backbone of the model is isolated."""
    return any(_role(module) == "backbone" for module in model.modules())


def recurrent(model: Any) -> bool:
    """Whether some backbone of the model keeps state along the row."""
    return any((family := backbone_family(module)) is not None and family.recurrent for module in model.modules())


def _isolated_inside(model: Any) -> bool:
    return any(_is_isolated(module) for module in model.modules() if module is not model)


def _is_isolated(module: Any) -> bool:
    return _role(module) == "backbone"


def adopt(module: Any) -> None:
    """Isolates a model that transformers has just built, or guards it; called for inner models first.

    A backbone that is known, or of a known structure, is isolated, and what is built around it keeps ready what it is told.
    Any other model that takes text gets a guard: it raises IsolationError when it meets a packed row, and is untouched
    otherwise. A backbone that is isolated already keeps its `native`, for what was put into it since too. Never raises itself.
    """
    if _isolated_inside(module):
        if backbone_family(module) is None and _is_head(module):
            try:
                refuse_beside(module, _is_isolated)
            except IsolationError as error:
                _guard(module, str(error))
            else:
                mark(module, Flag(type(module), "head"))
        return
    if not _is_backbone(module):
        if takes_text(type(module)):
            _guard(module, why_not(module))
        return
    earlier = module.__dict__.get(FLAG)
    try:
        _isolate(module, native=earlier is None or earlier.native)
    except IsolationError as error:
        _guard(module, str(error))


# ---- planning ---------------------------------------------------------------------------------------------------


class _Plan:
    """The flags that modules will get, by identity, and what is told about them."""

    def __init__(self, native: bool) -> None:
        self.native = native
        self.flags: dict[int, tuple[Any, Flag]] = {}
        self.parts: list[Part] = []

    def mark(self, path: str, module: Any, flag: Flag, way: str, why: str = "") -> None:
        self.flags[id(module)] = (module, flag)
        self.parts.append(Part(path, type(module).__name__, flag.role, way, why))


def _planned(model: Any, native: bool) -> tuple[list[tuple[Any, Flag]], tuple[Part, ...]]:
    plan = _Plan(native)
    backbones = _backbones(model)
    if not backbones:
        raise IsolationError(why_not(model))
    for name, backbone in backbones.items():
        _plan_backbone(name, backbone, plan)
    refuse_beside(model, lambda module: any(module is backbone for backbone in backbones.values()))
    for module in model.modules():
        if id(module) not in plan.flags and _is_head(module) and _holds(module, backbones.values()):
            plan.flags[id(module)] = (module, Flag(type(module), "head"))
    for module, flag in plan.flags.values():
        # A head that is isolated may have been given another forward since: TRL's, which skips it, or accelerate's around it.
        if flag.role != "head" or _role(module) != "head":
            _check_instance(module)
    return list(plan.flags.values()), tuple(plan.parts)


def _backbones(model: Any) -> dict[str, Any]:
    """The text backbones of a model by path: those of known families, else the one that its unlisted code has."""
    listed = {name: module for name, module in model.named_modules() if backbone_family(module) is not None}
    if listed:
        return listed
    return {name: module for name, module in model.named_modules() if _unlisted_backbone(module)}


def _is_backbone(module: Any) -> bool:
    return backbone_family(module) is not None or _unlisted_backbone(module)


def _unlisted_backbone(module: Any) -> bool:
    """Whether it is a backbone whose code came with a checkpoint: it takes text, and holds embeddings and a list of layers."""
    kind = type(module)
    if kind.__module__.startswith(("transformers.", "torch.")) or not _is_head(module):
        return False
    children = dict(module.named_children())
    return any(isinstance(child, Embedding) for child in children.values()) and any(
        isinstance(child, ModuleList) for child in children.values()
    )


def _plan_backbone(name: str, backbone: Any, plan: _Plan) -> None:
    if hidden := closed(backbone):
        raise IsolationError(
            f"{type(backbone).__name__} holds parts whose code cannot be read, and they may mix tokens: {', '.join(hidden[:8])}"
        )
    anatomy = anatomy_of(backbone) if backbone_family(backbone) is not None else anatomy_by_structure(backbone)
    way = _way_of_attention(backbone)
    prefix = f"{name}." if name else ""
    flag = Flag(type(backbone), "backbone", anatomy.family, len(anatomy.mixers), native=plan.native)
    plan.mark(name, backbone, flag, way)
    ways = {path: _way(mixer, entry, way, plan.native) for path, (mixer, entry) in anatomy.mixers.items()}
    for path, layer in anatomy.layers.items():
        inside = [ways[name][0] for name in anatomy.within(path)]
        plan.mark(
            prefix + path, layer, Flag(type(layer), "layer", mixers=len(inside)), " and ".join(dict.fromkeys(inside)) or way
        )
    for path, (mixer, entry) in anatomy.mixers.items():
        role = "attention" if entry is None else "mixer"
        flag = Flag(type(mixer), role, entry, mixers=len(anatomy.within(path)), path=prefix + path, native=plan.native)
        plan.mark(prefix + path, mixer, flag, *ways[path])


def _way_of_attention(module: Any) -> str:
    """How attention that goes through the registry keeps documents apart."""
    implementation = implementation_of(module)
    return VARLEN if flash(implementation) else BLOCK_MASK if implementation == FLEX else BATCHING


def _way(mixer: Any, entry: Mixer | None, way: str, native: bool) -> tuple[str, str]:
    """How a mixer will keep documents apart, as things stand, and why not natively."""
    if entry is None:
        return way, ""
    if entry.attention:
        return BATCHING, ""
    why = gap(mixer, entry) if native else "isolate(native=False)"
    return (BATCHING, why) if why else (NATIVE, "")


def _holds(module: Any, backbones: Any) -> bool:
    inner = {id(each) for each in module.modules()}
    return any(id(backbone) in inner for backbone in backbones)


def _is_head(module: Any) -> bool:
    """Whether a module is called with text like a model: its call may describe documents."""
    return hasattr(module, "config") and takes_text(type(module))


def _role(module: Any) -> str:
    flag = module.__dict__.get(FLAG)
    return flag.role if flag is not None else ""


def _guard(module: Any, reason: str) -> None:
    mark(module, Flag(type(module), "guard", reason=reason))


# ---- instances that carry a forward of their own -----------------------------------------------------------------


def _check_instance(module: Any) -> None:
    """A forward on the instance (hooks of accelerate, output recording) must lead to the class's own."""
    forward = module.__dict__.get("forward")
    if forward is None or _stale(module, forward) or _stale(module, module.__dict__.get("_old_forward")):
        return
    by = getattr(forward, "__qualname__", forward)
    raise IsolationError(
        f"the forward of a {type(module).__name__} was replaced on the instance (by {by}), so it cannot be isolated any more: "
        "isolate the model before wrapping it"
    )


def _stale(module: Any, method: Any) -> bool:
    """Whether a method on the instance is its class's forward, perhaps as it was before the wrapper. One that anybody
    else has wrapped is not: putting ours in its place would drop theirs."""
    kind: Any = type(module)
    if not isinstance(method, MethodType) or method.__self__ is not module:
        return False
    function: Any = method.__func__
    while hasattr(function, "__wrapped__"):
        if function.__globals__["__name__"].split(".")[0] not in ("transformers", "patchwork"):
            return False
        function = function.__wrapped__
    return function is inspect.unwrap(kind.forward)


def _rebind(module: Any) -> None:
    for name in ("forward", "_old_forward"):
        if _stale(module, module.__dict__.get(name)):
            module.__dict__[name] = MethodType(type(module).forward, module)
