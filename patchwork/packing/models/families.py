"""The known model families: their text backbones and their layers, by class name.

Matching is by class name and defining module, so that neither torch nor transformers is imported here, and a class of the
same name from elsewhere is not mistaken for the one that was proven.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from packaging.version import Version


@dataclass(frozen=True)
class Family:
    """A family of models: the folder of its modeling file, its text backbone, and the layer classes that hold its mixers.

    `text_plane`: the backbone takes MRoPE ids with a text plane in front (4, B, S). `recurrent`: whether it keeps state
    along the row. `flash`: whether attention that is a varlen kernel can be kept apart.
    """

    name: str
    backbone: str
    layers: tuple[str, ...] = ()
    text_plane: bool = False
    recurrent: bool = False
    flash: bool = True

    @property
    def row_masks(self) -> bool:
        """Whether its code computes with masks, and so needs those of the whole row."""
        return self.name in _ROW_MASKS


_ROW_MASKS = ("inkling2", "inkling2_loop", "qwen4_exp")


def _hybrid(name: str, stem: str, *layers: str, backbone: str = "Model", text_plane: bool = False, flash: bool = True) -> Family:
    parts = tuple(stem + layer for layer in layers or ("DecoderLayer",))
    return Family(name, stem + backbone, parts, text_plane, recurrent=True, flash=flash)


FAMILIES = (
    # gated delta rule
    _hybrid("qwen3_next", "Qwen3Next"),
    _hybrid("qwen3_5", "Qwen3_5", backbone="TextModel", text_plane=True),
    _hybrid("qwen3_5_moe", "Qwen3_5Moe", backbone="TextModel", text_plane=True),
    _hybrid("qwen4_exp", "Qwen4ExpText", text_plane=True, flash=False),
    _hybrid("olmo_hybrid", "OlmoHybrid", "AttentionDecoderLayer", "LinearAttentionDecoderLayer"),
    _hybrid("lara_mini", "LaraMini"),
    # Kimi delta attention
    _hybrid("kimi_linear", "KimiLinear"),
    _hybrid("bailing_hybrid", "BailingHybrid"),
    _hybrid("glm5_next", "Glm5NextText", flash=False),
    # Mamba
    _hybrid("mamba", "Mamba", "Block"),
    _hybrid("falcon_mamba", "FalconMamba", "Block"),
    _hybrid("mamba2", "Mamba2", "Block"),
    _hybrid("bamba", "Bamba"),
    _hybrid("jamba", "Jamba", "AttentionDecoderLayer", "MambaDecoderLayer"),
    _hybrid("zamba", "Zamba", "HybridLayer", "MambaDecoderLayer"),
    _hybrid("zamba2", "Zamba2", "HybridLayer", "MambaDecoderLayer"),
    _hybrid("falcon_h1", "FalconH1"),
    _hybrid("nemotron_h", "NemotronH", "Block"),
    _hybrid("granitemoehybrid", "GraniteMoeHybrid"),
    # lightning attention
    _hybrid("minimax", "MiniMax"),
    # short convolutions
    _hybrid("lfm2", "Lfm2"),
    _hybrid("lfm2_moe", "Lfm2Moe"),
    _hybrid("lfm3", "Lfm3"),
    _hybrid("inkling", "Inkling", backbone="TextModel", flash=False),
    _hybrid("inkling2", "Inkling2", "SlidingDecoderLayer", "FullDecoderLayer", backbone="TextModel", flash=False),
    _hybrid(
        "inkling2_loop",
        "Inkling2Loop",
        *(f"{kind}{loop}DecoderLayer" for kind in ("Sliding", "Full") for loop in ("", "Loop")),
        backbone="TextModel",
        flash=False,
    ),
    _hybrid("zaya", "Zaya", flash=False),
    # other recurrences
    _hybrid("recurrent_gemma", "RecurrentGemma"),
    _hybrid("rwkv", "Rwkv", "Block"),
    _hybrid("xlstm", "xLSTM", "Block"),
)

_BY_BACKBONE = {family.backbone: family for family in FAMILIES}

# Families of attention only, and the transformers release from which all their attention goes through its registry. They are
# taken apart by structure (patchwork.packing.models.known_code); listed is what the census has measured (docs/census.md).
_DISPATCHED_SINCE = {
    "codegen": "5.24",
    "ctrl": "5.13",
    "dbrx": "5.0",
    "diffllama": "5.13",
    "gptj": "5.24",
    "jetmoe": "5.0",
    "moshi": "5.13",
    "nemotron": "5.13",
    "olmoe": "5.0",
    "phimoe": "5.0",
    "qwen2_moe": "5.0",
    "stablelm": "5.0",
}
_DISPATCHED_ALWAYS = """
    afmoe apertus apertus1p5 arcee aria axk1 beam biogpt bitnet cohere cohere2 cohere2_moe cohere_compass csm cwm deepseek_v2
    deepseek_v3 dory dots1 emu3 ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3 gemma3n gemma4
    gemma4_unified glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss granite granite_swa granitemoe
    granitemoe_swa granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax jais2 kolibri1 laguna
    llama llama4 longcat_flash mellum mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl ministral ministral3 mistral mixtral
    mllama modernbert_decoder nanochat olmo olmo2 olmo3 opt persimmon phi phi3 qwen2 qwen2_5_vl qwen2_vl qwen3 qwen3_moe
    qwen3_vl qwen3_vl_moe seed_oss smollm3 solar_open starcoder2 vaultgemma youtu
"""
ATTENTION_ONLY = {**dict.fromkeys(_DISPATCHED_ALWAYS.split(), "0"), **_DISPATCHED_SINCE}


def family_of(kind: type) -> Family | None:
    """The family whose text backbone a class is, by its name, else None."""
    for base in kind.__mro__:
        family = _BY_BACKBONE.get(base.__name__)
        if family is not None and defines(kind, family.name, family.backbone):
            return family
    return None


def folder_of(kind: type) -> str:
    """The folder of transformers' models in which a class, or the one that it derives from, is written with its forward."""
    for base in kind.__mro__:
        if base.__module__.startswith("transformers.models.") and defines(kind, base.__module__.split(".")[2], base.__name__):
            return base.__module__.split(".")[2]
    return ""


def is_layer(kind: type, family: Family) -> bool:
    """Whether a class is one of the family's layers."""
    names = {*family.layers}.intersection(map(attrgetter("__name__"), kind.__mro__))
    return any(defines(kind, family.name, layer) for layer in names)


def released(version: str) -> bool:
    """Whether the transformers that is imported is at least of this release."""
    return Version(sys.modules["transformers"].__version__) >= Version(version)


def defines(kind: type, family: str, name: str) -> bool:
    """Whether a class, or one it derives from (FSDP makes subclasses), is transformers' own of that name, and so is its
    forward: one that somebody else put there does not count as the one that was proven."""
    package = f"transformers.models.{family}."
    if not any(base.__name__ == name and base.__module__.startswith(package) for base in kind.__mro__):
        return False
    forward = getattr(kind, "forward", None)
    if getattr(forward, "__module__", "") == _HOOKS:
        forward = written(forward)
    return str(getattr(forward, "__module__", "")).startswith(package)


_HOOKS = "transformers.integrations.accelerate"


def written(forward: Any) -> Any:
    """The function that a forward's class has in its source, behind wrappers that say what they wrap, and behind the one
    that transformers 5.13 to 5.15 puts around mixers (force_accelerate_hooks), which does not."""
    forward = inspect.unwrap(forward)
    while forward.__module__ == _HOOKS and "forward_func" in forward.__code__.co_freevars:
        cell = forward.__closure__[forward.__code__.co_freevars.index("forward_func")]
        forward = inspect.unwrap(cell.cell_contents)
    return forward
