"""Which model families and which token mixers are known, and what of a mixer's call counts per token?

One line per mixer class and one per family. Matching is by class name and defining module, so that neither torch nor
transformers is imported here, and a class of the same name from elsewhere is not mistaken for the one that was proven.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from packaging.version import Version

from patchwork.packing.arguments import BOUNDARIES, CACHES

# What a document of its own has no use for: boundaries, the mask of a padded batch, a cache that starts empty.
DROPPED = (*BOUNDARIES, *CACHES, "attention_mask", "cache_position", "position_ids", "use_cache")


@dataclass(frozen=True)
class Mixer:
    """A token mixer that runs on documents side by side.

    ``hidden`` names the argument with the hidden states (B, S, H), ``per_token`` those that are cut like it. An
    argument in ``per_token`` is never dropped. ``chunk``: the argument that sets the chunk length of the torch rule,
    where the mixer hands it on; documents of 16 tokens need no chunk of 64.
    """

    name: str
    families: tuple[str, ...]
    hidden: str = "hidden_states"
    per_token: tuple[str, ...] = ()
    chunk: str = ""


@dataclass(frozen=True)
class Family:
    """A family of models: the folder of its modeling file, its text backbone, and the layer class that holds mixers.

    ``layer`` is empty where the family has attention only. ``text_plane``: the backbone takes MRoPE ids with a text
    plane in front (4, B, S). ``since``: the transformers release from which its attention masks know positions.
    """

    name: str
    backbone: str
    layer: str = ""
    text_plane: bool = False
    since: str = "0"

    @property
    def recurrent(self) -> bool:
        """Whether the family keeps state along the row."""
        return bool(self.layer)


MIXERS = (
    Mixer("Qwen3NextGatedDeltaNet", ("qwen3_next",), chunk="chunk_size"),
    Mixer("Qwen3_5GatedDeltaNet", ("qwen3_5",), chunk="chunk_size"),
    Mixer("Qwen3_5MoeGatedDeltaNet", ("qwen3_5_moe",), chunk="chunk_size"),
)

FAMILIES = (
    Family("qwen3_next", "Qwen3NextModel", "Qwen3NextDecoderLayer"),
    Family("qwen3_5", "Qwen3_5TextModel", "Qwen3_5DecoderLayer", text_plane=True),
    Family("qwen3_5_moe", "Qwen3_5MoeTextModel", "Qwen3_5MoeDecoderLayer", text_plane=True),
    # Attention only: the backbone builds its masks from position ids, which a test shows in each matrix cell.
    Family("cohere", "CohereModel"),
    Family("gemma", "GemmaModel"),
    Family("gemma2", "Gemma2Model"),
    Family("glm4", "Glm4Model"),
    Family("granite", "GraniteModel"),
    Family("llama", "LlamaModel"),
    Family("mistral", "MistralModel"),
    Family("mixtral", "MixtralModel"),
    Family("olmo", "OlmoModel"),
    Family("olmo2", "Olmo2Model"),
    Family("phi3", "Phi3Model"),
    Family("qwen2", "Qwen2Model"),
    Family("qwen2_moe", "Qwen2MoeModel", since="5.0"),
    Family("qwen3", "Qwen3Model"),
    Family("qwen3_moe", "Qwen3MoeModel"),
    Family("smollm3", "SmolLM3Model"),
    Family("starcoder2", "Starcoder2Model"),
)

_RECURRENT_NAME = re.compile(
    r"Mamba|SSM|DeltaNet|DeltaAttention|DeltaRule|LightningAttention|LinearAttention|GatedLinear|Rglru|RecurrentBlock|"
    r"Rwkv|RWKV|[ms]LSTM|ShortConv|Hyena|Retention|RetNet",
)
# Torch's own parts that mix along a row, by their base classes.
_RECURRENT_PART = ("_ConvNd", "RNNBase", "RNNCellBase")


def family_of(kind: type) -> Family | None:
    """The family whose text backbone a class is, else None."""
    for family in FAMILIES:
        if defines(kind, family.name, family.backbone):
            return family if released(family.since) else None
    return None


def released(version: str) -> bool:
    """Whether the transformers that is imported is at least of this release."""
    return Version(sys.modules["transformers"].__version__) >= Version(version)


def takes_chunk(mixer: Mixer, forward: Any) -> Callable[[], bool]:
    """Asks whether a mixer's forward hands a chunk length on, and to the torch rule: a fast kernel has chunks of its own.

    From 5.15 it hands all its keywords on; before, a source patch gives it the parameter, and takes it away at a revert. So
    that is asked at each call, and only what stays is found out here.
    """
    if not mixer.chunk or find_spec("fla") is not None or find_spec("kernels") is not None:
        return lambda: False
    if released("5.15"):
        return lambda: True
    inner = inspect.unwrap(forward)
    return lambda: mixer.chunk in (inner.__kwdefaults__ or ())


def mixer_of(kind: type) -> Mixer | None:
    """The entry of a mixer class, else None."""
    for mixer in MIXERS:
        if any(defines(kind, family, mixer.name) for family in mixer.families):
            return mixer
    return None


def defines(kind: type, family: str, name: str) -> bool:
    """Whether a class, or one it derives from (FSDP makes subclasses), is transformers' own of that name, and so is its
    forward: one that somebody else put there does not count as the one that was proven."""
    package = f"transformers.models.{family}."
    if not any(base.__name__ == name and base.__module__.startswith(package) for base in kind.__mro__):
        return False
    return str(getattr(getattr(kind, "forward", None), "__module__", "")).startswith(package)


def layers_of(backbone: Any, family: Family) -> dict[str, Any]:
    """The layers of a backbone by name, also under wrappers."""
    if not family.layer:
        return {}
    return {name: module for name, module in backbone.named_modules() if defines(type(module), family.name, family.layer)}


def mixers_of(module: Any) -> dict[str, Any]:
    """The listed mixers below ``module``, by name."""
    return {name: child for name, child in module.named_modules() if mixer_of(type(child)) is not None}


def _mixes(kind: type) -> bool:
    """Whether a class looks as if it mixed tokens along the row: by its own name, or by what it derives from."""
    return any(
        _RECURRENT_NAME.search(base.__name__) or (base.__name__ in _RECURRENT_PART and base.__module__.startswith("torch.nn."))
        for base in kind.__mro__
    )


def unlisted(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Modules below ``module`` that look as if they mixed tokens along the row, and are not listed. Those inside a
    listed mixer belong to it."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if mixer_of(type(child)) is not None:
            continue
        if _mixes(type(child)):
            yield path, child
        else:
            yield from unlisted(child, path)
