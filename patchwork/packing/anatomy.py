"""Which parts of a backbone carry something along the row, and in which layers do they stand?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from patchwork.packing.boundaries import IsolationError
from patchwork.packing.families import Family, family_of, is_layer
from patchwork.packing.mixers import MIXERS, Mixer, mixer_of

_RECURRENT_NAME = re.compile(
    r"Mamba|SSM|DeltaNet|DeltaAttention|DeltaRule|LightningAttention|LinearAttention|GatedLinear|Rglru|RecurrentBlock|"
    r"Rwkv|RWKV|LSTM|ShortConv|Hyena|Retention|RetNet",
)
_POINTWISE_NAME = re.compile(r"Norm(Gated)?$|FeedForward$|Rotary|Embedding")
# Torch's own parts that mix along a row, by their base classes.
_RECURRENT_PART = ("_ConvNd", "RNNBase", "RNNCellBase")


@dataclass(frozen=True)
class Anatomy:
    """A backbone taken apart: its family, its layers by path, those inside of others too, since each may be checkpointed by
    itself, and all mixers in them, with their entries."""

    family: Family
    layers: Mapping[str, Any]
    mixers: Mapping[str, tuple[Any, Mixer]]

    def within(self, path: str) -> dict[str, tuple[Any, Mixer]]:
        """The mixers below a path."""
        return {name: held for name, held in self.mixers.items() if name.startswith(f"{path}.")}


def anatomy_of(backbone: Any) -> Anatomy:
    """Takes a backbone of a listed family apart.

    Raises IsolationError for a part that looks as if it mixed tokens along the row and is not listed, and for mixers
    outside of layers: boundaries would not reach them.
    """
    family = family_of(type(backbone))
    if family is None:
        raise IsolationError(f"{type(backbone).__name__} is not the text backbone of a known family")
    strangers = [f"{path} ({type(module).__name__})" for path, module in _unlisted(backbone, family)]
    if strangers:
        known = ", ".join(mixer.name for mixer in MIXERS)
        raise IsolationError(
            f"{type(backbone).__name__} holds token mixers that are not known: {', '.join(strangers[:8])}; known mixers: {known}"
        )
    layers: dict[str, Any] = {}
    mixers: dict[str, tuple[Any, Mixer]] = {}
    for path, layer in _outermost(backbone, family):
        for name, module in layer.named_modules(prefix=path):
            if is_layer(type(module), family):
                layers[name] = module
            elif (entry := mixer_of(type(module))) is not None:
                mixers[name] = (module, entry)
    held = {id(module) for module, _ in mixers.values()}
    loose = [name for name, module in backbone.named_modules() if mixer_of(type(module)) is not None and id(module) not in held]
    if loose:
        raise IsolationError(
            f"{type(backbone).__name__} holds mixers outside of its layers ({', '.join(family.layers) or 'none'}): "
            f"{', '.join(loose[:8])}: boundaries would not reach them"
        )
    return Anatomy(family, layers, mixers)


def _outermost(module: Any, family: Family, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The family's layers below ``module``, by path, without those inside of others. A layer that stands at two places is
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


def _unlisted(module: Any, family: Family, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Modules that look as if they mixed tokens along the row, and are not listed. Those inside a listed mixer belong to
    it; those inside attention do not, since masks alone may keep that apart."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        entry = mixer_of(type(child))
        if entry is not None and not entry.attention:
            continue
        if entry is None and not is_layer(type(child), family) and mixes(type(child)):
            yield path, child
        else:
            yield from _unlisted(child, family, path)
