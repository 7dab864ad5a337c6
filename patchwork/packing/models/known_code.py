"""Takes a backbone of transformers' own code apart: its layers, and the parts that mix tokens along the row."""

from __future__ import annotations

import difflib
import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.nn import Linear, ModuleList

from ..errors import IsolationError
from .config_fields import ropes
from .dispatch import dispatches
from .families import ATTENTION_ONLY, Family, family_of, folder_of, is_layer, released
from .mixers import MIXERS, NEVER, Mixer, mixer_of

_RECURRENT_NAME = re.compile(
    r"Mamba|SSM|DeltaNet|DeltaAttention|DeltaRule|LightningAttention|LinearAttention|GatedLinear|Rglru|RecurrentBlock|"
    r"Rwkv|RWKV|LSTM|ShortConv|Hyena|Retention|RetNet",
)
_ATTENTION_NAME = re.compile(r"Attention|Attn")
_POINTWISE_NAME = re.compile(r"Norm(Gated)?$|FeedForward$|Rotary|Embedding")
# Torch's own parts that mix along a row, by their base classes.
_RECURRENT_PART = ("_ConvNd", "RNNBase", "RNNCellBase")


@dataclass(frozen=True)
class Anatomy:
    """A backbone taken apart: its family, its layers by path, those inside of others too, since each may be checkpointed by
    itself, and all mixers in them, with their entries; attention that goes through the registry has none."""

    family: Family
    layers: Mapping[str, Any]
    mixers: Mapping[str, tuple[Any, Mixer | None]]

    def within(self, path: str) -> dict[str, tuple[Any, Mixer | None]]:
        """The mixers below a path."""
        return {name: held for name, held in self.mixers.items() if name.startswith(f"{path}.")}


def backbone_family(module: Any) -> Family | None:
    """The family whose text backbone a module is, by its class, or by its structure where it has attention only; else None."""
    kind = type(module)
    if (family := family_of(kind)) is not None:
        return family
    folder = folder_of(kind)
    if not released(ATTENTION_ONLY.get(folder, NEVER)) or not takes_text(kind):
        return None
    if next(_lists(module), None) is None:
        return None
    planes = any("mrope_section" in rope for rope in ropes(module.config))
    return Family(folder, kind.__name__, text_plane=planes)


def takes_text(kind: Any) -> bool:
    """Whether modules of a class are called with text."""
    return "input_ids" in parameters_of(kind)


def parameters_of(kind: Any) -> tuple[str, ...]:
    """The names of what modules of a class are called with; none where its forward says none: scripted by torch, or a builtin."""
    try:
        return tuple(inspect.signature(kind.forward).parameters)
    except (AttributeError, TypeError, ValueError):
        return ()


def _lists(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The layers of a backbone of attention only: members of a ModuleList that hold attention. Models inside the backbone are
    not searched."""
    for name, child in module.named_children():
        path = f"{prefix}{name}."
        if isinstance(child, ModuleList):
            for number, layer in child.named_children():
                if any(dispatches(type(part)) for part in layer.modules()):
                    yield f"{path}{number}", layer
        elif not hasattr(child, "config_class"):
            yield from _lists(child, path)


def anatomy_of(backbone: Any) -> Anatomy:
    """Takes a backbone of a listed family apart.

    Raises IsolationError for a part that looks as if it mixed tokens along the row and is not known, for attention that looks
    ahead, and for mixers outside of layers: boundaries would not reach them.
    """
    family = backbone_family(backbone)
    if family is None:
        raise IsolationError(f"{type(backbone).__name__} is not the text backbone of a known family")
    refuse_strangers(backbone, family)
    layers: dict[str, Any] = {}
    mixers: dict[str, tuple[Any, Mixer | None]] = {}
    for path, layer in _outermost(backbone, family) if family.layers else _lists(backbone):
        layers[path] = layer
        for name, module in _parts(layer, path):
            if is_layer(type(module), family):
                layers[name] = module
            elif (entry := mixer_of(type(module))) is not None:
                mixers[name] = (module, entry)
            elif attends(module):
                mixers[name] = (module, None)
    held = {id(module) for module, _ in mixers.values()}
    loose = [name for name, module in backbone.named_modules() if mixer_of(type(module)) is not None and id(module) not in held]
    if loose:
        raise IsolationError(
            f"{type(backbone).__name__} holds mixers outside of its layers ({', '.join(family.layers) or 'none'}): "
            f"{', '.join(loose[:8])}: boundaries would not reach them"
        )
    return Anatomy(family, layers, mixers)


def refuse_strangers(backbone: Any, family: Family) -> None:
    """Raises IsolationError if a backbone of a listed family holds a part that looks as if it mixed tokens and is not known."""
    found = list(_unlisted(backbone, family))
    if found:
        strangers = [f"{path} ({type(module).__name__})" for path, module in found]
        near = difflib.get_close_matches(type(found[0][1]).__name__, [mixer.name for mixer in MIXERS], 3, 0.4)
        raise IsolationError(
            f"{type(backbone).__name__} holds token mixers that are not known: {', '.join(strangers[:8])}"
            + (f"; the nearest known ones: {', '.join(near)}" if near else "")
        )


def refuse_beside(head: Any, is_backbone: Callable[[Any], bool]) -> None:
    """Raises IsolationError if a model holds, around its text backbones, a part that looks as if it mixed tokens. What is part
    of transformers there, such as what projects images, has no text in it."""
    strangers = [f"{path} ({type(module).__name__})" for path, module in _beside(head, is_backbone)]
    if strangers:
        raise IsolationError(
            f"{type(head).__name__} holds parts beside its text backbone that may mix tokens, which no boundaries reach: "
            f"{', '.join(strangers[:8])}"
        )


def _beside(module: Any, is_backbone: Callable[[Any], bool], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if is_backbone(child):
            continue
        if not any(map(is_backbone, child.modules())):
            if hasattr(child, "config_class") or type(child).__module__.startswith("transformers."):
                continue
            if mixes(type(child)) or own_attention(child):
                yield path, child
                continue
        yield from _beside(child, is_backbone, f"{path}.")


def _parts(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """All modules inside of one, by path. Attention inside of a mixer that runs on documents belongs to that."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}"
        entry = mixer_of(type(child))
        yield path, child
        for inner, part in _parts(child, path):
            if entry is None or not attends(part):
                yield inner, part


def attends(module: Any) -> bool:
    """Whether a module is self-attention that goes through transformers' registry."""
    return dispatches(type(module)) and not (getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__)


def own_attention(module: Any) -> bool:
    """Whether it looks like attention of its own code: nothing in it goes through the registry."""
    if not _ATTENTION_NAME.search(type(module).__name__) or not any(isinstance(part, Linear) for part in module.modules()):
        return False
    return not any(dispatches(type(part)) for part in module.modules())


def _outermost(module: Any, family: Family, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The family's layers below `module`, by path, without those inside of others. A layer that stands at two places is
    found at both, as it is called at both."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if is_layer(type(child), family):
            yield path, child
        else:
            yield from _outermost(child, family, path)


def mixes(kind: type) -> bool:
    """Whether a class looks as if it mixed tokens along the row: by its own name, or by what it derives from."""
    return any(
        (_RECURRENT_NAME.search(base.__name__) and not _POINTWISE_NAME.search(base.__name__))
        or (base.__name__ in _RECURRENT_PART and base.__module__.startswith("torch.nn."))
        for base in kind.__mro__
    )


def _unlisted(module: Any, family: Family, prefix: str = "", listed: bool = False) -> Iterator[tuple[str, Any]]:
    """Modules that look as if they mixed tokens along the row, and are not listed. Those inside a listed mixer belong to
    it; those inside attention do not. Of a list within a layer (`listed`), which holds experts, one of each class is looked
    into: there may be thousands."""
    within, seen = isinstance(module, ModuleList), set[type]()
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        kind: Any = type(child)
        standing = _standing(kind, family)
        if standing is _Standing.MIXER:
            continue
        if standing is _Standing.MIXES or (standing is _Standing.OTHER and own_attention(child)):
            yield path, child
        elif not (within and listed and kind in seen):
            yield from _unlisted(child, family, path, listed or within)
        seen.add(kind)


class _Standing(enum.Enum):
    """What a class is to a family: one of its mixers, known otherwise, a stranger that mixes, or any other part."""

    MIXER, KNOWN, MIXES, OTHER = range(4)


@functools.cache
def _standing(kind: Any, family: Family) -> _Standing:
    entry = mixer_of(kind)
    if entry is not None and not entry.attention:
        return _Standing.MIXER
    if entry is not None or is_layer(kind, family) or dispatches(kind):
        return _Standing.KNOWN
    return _Standing.MIXES if mixes(kind) else _Standing.OTHER
