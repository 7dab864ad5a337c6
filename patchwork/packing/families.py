"""Which model families are known, and what are their text backbones and layers called?

Matching is by class name and defining module, so that neither torch nor transformers is imported here, and a class of the
same name from elsewhere is not mistaken for the one that was proven.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from packaging.version import Version


@dataclass(frozen=True)
class Family:
    """A family of models: the folder of its modeling file, its text backbone, and the layer classes that hold its mixers.

    ``layers`` is empty where the family has attention only. ``text_plane``: the backbone takes MRoPE ids with a text
    plane in front (4, B, S). ``since``: the transformers release from which its attention masks know positions, for
    families of attention only. ``flash``: whether attention that is no mask but a varlen kernel can be kept apart.
    """

    name: str
    backbone: str
    layers: tuple[str, ...] = ()
    text_plane: bool = False
    since: str = "0"
    flash: bool = True

    @property
    def recurrent(self) -> bool:
        """Whether the family keeps state along the row."""
        return bool(self.layers)


def _hybrid(name: str, stem: str, *layers: str, backbone: str = "Model", text_plane: bool = False, flash: bool = True) -> Family:
    parts = tuple(stem + layer for layer in layers or ("DecoderLayer",))
    return Family(name, stem + backbone, parts, text_plane=text_plane, flash=flash)


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


def family_of(kind: type) -> Family | None:
    """The family whose text backbone a class is, else None."""
    for family in FAMILIES:
        if defines(kind, family.name, family.backbone):
            return family if released(family.since) else None
    return None


def is_layer(kind: type, family: Family) -> bool:
    """Whether a class is one of the family's layers."""
    return any(defines(kind, family.name, layer) for layer in family.layers)


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
