"""The known token mixers: which arguments count per token, and which kernels keep documents apart.

One line per mixer class. A mixer is any module that carries something along the row: a recurrence, a convolution, a token
shift, and attention that does not go through transformers' registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ..argument_names import BOUNDARIES, CACHES
from .families import defines, released, written

# What a document of its own has no use for: boundaries, the mask of a padded batch, a cache that starts empty.
DROPPED = (*BOUNDARIES, *CACHES, "attention_mask", "cache_position", "conv_mask", "position_ids")
NEVER = "9999"


@dataclass(frozen=True)
class Mixer:
    """A token mixer that runs on documents side by side, or natively by varlen kernels.

    Attributes:
        name: the class.
        family: the folder of transformers that defines it.
        hidden: the argument with the hidden states (B, S, H).
        per_token: arguments that are cut like the hidden states.
        masks: arguments (B, heads, S, S) of attention, of which a document's own square is cut. What is named in `per_token` or
            `masks` is never dropped.
        results: the elements of a returned tuple that are per token, the others come back as None; empty: all of them.
        chunk: the argument that sets the chunk length of the torch rule, where the mixer hands it on; documents of 16 tokens
            need no chunk of 64.
        chunks: the attribute that holds the chunk length, in mixers that keep it there.
        stale: the attribute in which the mixer keeps a state from call to call.
        causal_since: the first release whose torch code is causal within a chunk; before it, padding behind a document would
            change the document.
        dispatched_since: for attention, the first transformers release in which it goes through the registry
            (patchwork.packing.runtime.attention), and is no mixer.
        kernels: the names by which the mixer calls its kernels, by the name of the kernel.
        native: the releases in which its forward hands boundaries on to the kernels, patches in force.
        closed: why it does not do so in other releases.
    """

    name: str
    family: str
    hidden: str = "hidden_states"
    per_token: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    results: tuple[int, ...] = ()
    chunk: str = ""
    chunks: str = ""
    stale: str = ""
    causal_since: str = "0"
    dispatched_since: str = NEVER
    kernels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    native: str = ""
    closed: str = "its kernels take no boundaries"

    @property
    def attention(self) -> bool:
        """Whether it is attention."""
        return bool(self.masks) or self.dispatched_since != NEVER


_CONV = ("causal_conv1d_fn", ("causal_conv1d_fn",))
_GATED_DELTA = (_CONV, ("chunk_gated_delta_rule", ("chunk_gated_delta_rule", "torch_chunk_gated_delta_rule")))
_KIMI = (_CONV, ("chunk_kda", ("chunk_kimi_delta_attention",)))
_MAMBA2 = (
    _CONV,
    ("mamba_chunk_scan_combined", ("mamba_chunk_scan_combined", "mamba2_chunk_scan")),
    ("mamba_split_conv1d_scan_combined", ("mamba_split_conv1d_scan_combined", "mamba2_split_conv1d_scan_combined")),
)


def _delta(name: str, family: str, native: str, closed: str = "") -> Mixer:
    return Mixer(name, family, chunk="chunk_size", kernels=_GATED_DELTA, native=native, closed=closed)


def _kimi(name: str, family: str) -> Mixer:
    return Mixer(name, family, chunk="chunk_size", kernels=_KIMI, native=">=5.16", closed="")


def _mamba(name: str, family: str) -> Mixer:
    return Mixer(name, family, closed="selective_scan_fn and mamba_inner_fn take no boundaries")


def _mamba2(name: str, family: str, causal_since: str = "0") -> Mixer:
    return Mixer(name, family, chunks="chunk_size", causal_since=causal_since, kernels=_MAMBA2, native=">=4.57", closed="")


def _conv(name: str, family: str, native: str, per_token: tuple[str, ...] = (), closed: str = "") -> Mixer:
    return Mixer(name, family, per_token=per_token, kernels=(_CONV,), native=native, closed=closed)


def _attention(name: str, family: str, since: str, *per_token: str, results: tuple[int, ...] = (0,)) -> Mixer:
    masks = ("attention_mask",)
    return Mixer(name, family, per_token=per_token, masks=masks, results=results, dispatched_since=since, closed="")


_ROTARY = "position_embeddings"

MIXERS = (
    _delta("Qwen3NextGatedDeltaNet", "qwen3_next", ">=4.57"),
    _delta("Qwen3_5GatedDeltaNet", "qwen3_5", ">=5.2"),
    _delta("Qwen3_5MoeGatedDeltaNet", "qwen3_5_moe", ">=5.2"),
    _delta("Qwen4ExpTextGatedDeltaNet", "qwen4_exp", ">=5.16"),
    Mixer("Qwen4ExpTextPLELayer", "qwen4_exp", per_token=("input_ids",), closed="a dilated convolution of torch, and n-grams"),
    _delta("OlmoHybridGatedDeltaNet", "olmo_hybrid", ">=5.15", "to 5.14 its convolutions are three modules of torch"),
    _delta("LaraMiniGatedDeltaNet", "lara_mini", ">=5.24"),
    _kimi("KimiLinearDeltaAttention", "kimi_linear"),
    _kimi("BailingHybridDeltaAttention", "bailing_hybrid"),
    _kimi("Glm5NextTextLinearAttention", "glm5_next"),
    _mamba("MambaMixer", "mamba"),
    _mamba("FalconMambaMixer", "falcon_mamba"),
    _mamba("JambaMambaMixer", "jamba"),
    Mixer(
        "ZambaMambaMixer",
        "zamba",
        closed="selective_scan_fn takes no boundaries, and the convolution gets a layout for which causal_conv1d refuses seq_idx",
    ),
    _mamba2("Mamba2Mixer", "mamba2"),
    _mamba2("BambaMixer", "bamba"),
    _mamba2("Zamba2MambaMixer", "zamba2", causal_since="5.15"),
    _mamba2("FalconH1Mixer", "falcon_h1"),
    _mamba2("NemotronHMamba2Mixer", "nemotron_h", causal_since="5.15"),
    _mamba2("GraniteMoeHybridMambaLayer", "granitemoehybrid"),
    Mixer("MiniMaxLightningAttention", "minimax", per_token=(_ROTARY,), results=(0,), closed="a recurrence of torch"),
    _conv("Lfm2ShortConv", "lfm2", ">=4.57"),
    _conv("Lfm2MoeShortConv", "lfm2_moe", ">=5.0"),
    _conv("Lfm3ShortConv", "lfm3", ">=5.24", closed="in 5.23 its convolution is always that of torch"),
    _conv("InklingShortConvolution", "inkling", ">=5.15", closed="in 5.14 its kernel comes from the Hub alone"),
    _conv("Inkling2ShortConvolution", "inkling2", ">=5.23", ("dynamic_input",)),
    _conv("Inkling2LoopShortConvolution", "inkling2_loop", ">=5.24", ("dynamic_input",)),
    Mixer("Inkling2DynamicShortConvolution", "inkling2", per_token=("dynamic_input",), closed="a convolution of torch"),
    Mixer("Inkling2LoopDynamicShortConvolution", "inkling2_loop", per_token=("dynamic_input",), closed="a convolution of torch"),
    Mixer("ZayaCCAProjection", "zaya", closed="convolutions and a delay of torch"),
    Mixer(
        "RecurrentGemmaRecurrentBlock",
        "recurrent_gemma",
        hidden="input_states",
        per_token=("position_ids",),
        results=(0,),
        stale="rg_lru.recurrent_states",
        closed="a recurrence and a convolution of torch",
    ),
    Mixer("RwkvSelfAttention", "rwkv", hidden="hidden", results=(0,), closed="its kernel takes no boundaries"),
    Mixer("RwkvFeedForward", "rwkv", hidden="hidden", results=(0,), closed="a token shift of torch"),
    Mixer("xLSTMLayer", "xlstm", hidden="x", results=(0,), closed="its kernels take no boundaries"),
    # Attention that does not go through transformers' registry, or not until the release that is named.
    _attention("JambaAttention", "jamba", "5.0"),
    _attention("RecurrentGemmaSdpaAttention", "recurrent_gemma", NEVER, "position_ids", results=()),
    # Its scale depends on how far into the row a token is, whatever its position.
    _attention("InklingAttention", "inkling", NEVER),
    # It looks for what to attend to by itself, in the whole row.
    Mixer(
        "Glm5NextTextAttention",
        "glm5_next",
        per_token=("attention_mask", "prev_topk_indices"),
        results=(0, 2),
        closed="it chooses tokens of the whole row by itself",
    ),
)

_BY_CLASS = {mixer.name: mixer for mixer in MIXERS}


def mixer_of(kind: type) -> Mixer | None:
    """The entry of a mixer class, else None."""
    for base in kind.__mro__:
        mixer = _BY_CLASS.get(base.__name__)
        if mixer is not None and defines(kind, mixer.family, mixer.name):
            return None if released(mixer.dispatched_since) else mixer
    return None


def closed_ways() -> dict[str, list[str]]:
    """Why mixers do not leave documents to kernels, in some or all releases, each reason with the families it is for."""
    found: dict[str, list[str]] = {}
    for mixer in MIXERS:
        if mixer.closed and not mixer.attention:
            families = found.setdefault(mixer.closed, [])
            families += [mixer.family] if mixer.family not in families else []
    return found


def fast_kernels() -> bool:
    """Whether packages are installed whose scans have chunks of their own."""
    return any(find_spec(package) is not None for package in ("fla", "kernels", "mamba_ssm"))


def takes_chunk(mixer: Mixer, forward: Any) -> Callable[[], bool]:
    """Asks whether a mixer's forward hands a chunk length on, and to the torch rule: a fast kernel has chunks of its own.

    From 5.15 it hands all its keywords on; before, a source patch gives it the parameter, and takes it away at a revert. So
    that is asked at each call, and only what stays is found out here.
    """
    if not mixer.chunk:
        return lambda: False
    if released("5.15"):
        return lambda: True
    inner = written(forward)
    return lambda: mixer.chunk in (inner.__kwdefaults__ or ())
