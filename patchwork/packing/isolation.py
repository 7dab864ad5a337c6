"""Which modules of a model have to take part so that its documents stay apart, and are all of them known?

``isolate`` validates a model and flags its modules; patchwork.packing.transport holds the code that the flags turn on.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import MethodType
from typing import Any

from patchwork.packing.boundaries import IsolationError
from patchwork.packing.mixers import FAMILIES, MIXERS, Family, family_of, layers_of, mixers_of, unlisted
from patchwork.packing.transport import FLAG, Flag, install, masked

BATCHING = "document batching"
MASK = "attention mask"


@dataclass(frozen=True)
class Part:
    """One module of an isolated model, and the way its documents are kept apart."""

    module: str
    kind: str
    role: str
    way: str


# ---- public -----------------------------------------------------------------------------------------------------


def isolate(model: Any) -> tuple[Part, ...]:
    """Keeps the documents of packed rows apart in ``model`` (any nn.Module with a known text backbone inside).

    Returns what it did, module by module. Calls that are not packed stay bit-identical. Doing it twice is doing it
    once. All modules are validated before the first is changed. Raises IsolationError for a family or a recurrent
    mixer that is not known, naming it.
    """
    flags, parts = _planned(model)
    for module, flag in flags:
        install(flag.owner, flag.role)
        _rebind(module)
        module.__dict__[FLAG] = flag
    return parts


def validate(model: Any) -> tuple[Part, ...]:
    """What ``isolate`` would do; raises what it would raise, and changes nothing."""
    return _planned(model)[1]


def restore(model: Any) -> None:
    """Undoes ``isolate`` and guards: the model's calls go straight to the original code again."""
    for module in model.modules():
        module.__dict__.pop(FLAG, None)


def isolated(model: Any) -> bool:
    """Whether some backbone of the model is isolated."""
    return any(_role(module) == "backbone" for module in model.modules())


def adopt(module: Any) -> None:
    """Isolates a model that transformers has just built, or guards it; called for inner models first.

    A known backbone is isolated. A model of an unknown family that takes text gets a guard: it raises IsolationError
    when it meets a packed row, and is untouched otherwise. Never raises itself.
    """
    if family_of(type(module)) is not None:
        try:
            isolate(module)
        except IsolationError as error:
            _guard(module, str(error))
        return
    if any(_role(inner) == "backbone" for inner in module.modules()) or not _takes_text(module):
        return
    _guard(module, f"{type(module).__name__} is of no family whose documents are known to stay apart in a packed row")


# ---- planning ---------------------------------------------------------------------------------------------------


def _planned(model: Any) -> tuple[list[tuple[Any, Flag]], tuple[Part, ...]]:
    backbones = [
        (name, module, family) for name, module in model.named_modules() if (family := family_of(type(module))) is not None
    ]
    if not backbones:
        known = ", ".join(sorted(family.name for family in FAMILIES))
        raise IsolationError(f"no text backbone of a known family in {type(model).__name__}; known: {known}")
    flags: dict[int, tuple[Any, Flag]] = {}
    parts: list[Part] = []
    for name, backbone, family in backbones:
        _plan_backbone(name, backbone, family, flags, parts)
    for module, _ in flags.values():
        _check_instance(module)
    return list(flags.values()), tuple(parts)


def _plan_backbone(name: str, backbone: Any, family: Family, flags: dict[int, tuple[Any, Flag]], parts: list[Part]) -> None:
    def mark(path: str, module: Any, flag: Flag, way: str) -> None:
        flags[id(module)] = (module, flag)
        parts.append(Part(".".join(filter(None, (name, path))), type(module).__name__, flag.role, way))

    strangers = [f"{path} ({type(module).__name__})" for path, module in unlisted(backbone)]
    if strangers:
        known = ", ".join(mixer.name for mixer in MIXERS)
        raise IsolationError(
            f"{type(backbone).__name__} holds token mixers that are not known: {', '.join(strangers[:8])}; known mixers: {known}"
        )
    layers = layers_of(backbone, family)
    way = MASK if masked(backbone) else "varlen arguments"
    mixers = sum(len(mixers_of(layer)) for layer in layers.values())
    mark("", backbone, Flag(type(backbone), "backbone", mixers=mixers, layers=tuple(layers)), way)
    covered: set[int] = set()
    for path, layer in layers.items():
        held = mixers_of(layer)
        mark(path, layer, Flag(type(layer), "layer", mixers=len(held)), BATCHING if held else way)
        for inner, mixer in held.items():
            mark(f"{path}.{inner}", mixer, Flag(type(mixer), "mixer"), BATCHING)
            covered.add(id(mixer))
    loose = [path for path, mixer in mixers_of(backbone).items() if id(mixer) not in covered]
    if loose:
        raise IsolationError(
            f"{type(backbone).__name__} holds mixers outside of its layers ({family.layer or 'none'}): "
            f"{', '.join(loose[:8])}: boundaries would not reach them"
        )


def _role(module: Any) -> str:
    flag = module.__dict__.get(FLAG)
    return flag.role if flag is not None else ""


def _takes_text(module: Any) -> bool:
    names = set(inspect.signature(type(module).forward).parameters)
    return "input_ids" in names and bool(names & {"inputs_embeds", "position_ids"})


def _guard(module: Any, reason: str) -> None:
    install(type(module), "guard")
    module.__dict__[FLAG] = Flag(type(module), "guard", reason=reason)


# ---- instances that carry a forward of their own -----------------------------------------------------------------


def _check_instance(module: Any) -> None:
    """A forward on the instance (hooks of accelerate, output recording) must lead to the class's own."""
    forward = module.__dict__.get("forward")
    if forward is None or _stale(module, forward) or _stale(module, module.__dict__.get("_old_forward")):
        return
    raise IsolationError(
        f"the forward of a {type(module).__name__} was replaced on the instance ({forward!r:.80}), so it cannot be "
        "isolated any more: isolate the model before wrapping it"
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
