"""Gated delta nets (qwen3_next, qwen3_5, qwen3_5_moe): documents for the kernels, shorter chunks for the torch rule."""

from __future__ import annotations

from patchwork import Case, Patch, parameter, required

_MIXERS = {
    "qwen3_next": ("Qwen3NextGatedDeltaNet", ">=4.57"),
    "qwen3_5": ("Qwen3_5GatedDeltaNet", ">=5.2"),
    "qwen3_5_moe": ("Qwen3_5MoeGatedDeltaNet", ">=5.2"),
}
_CONVOLUTION = "self.causal_conv1d_fn({}, seq_idx={})"
_RULE = "self.chunk_gated_delta_rule({}, use_qk_l2norm_in_kernel=True{})"
# Only where they are given: the torch rule before 5.9 takes no cu_seqlens, fla's of some releases no chunk_size.
_CHUNK = ", **({} if chunk_size is None else {'chunk_size': chunk_size})"
_DOCUMENTS = ", **({} if cu_seq_lens_q is None else {'cu_seqlens': cu_seq_lens_q})"


def _forward(parameters: str, convolution: str, rule: str) -> str:
    return f"def forward(self, x{parameters}):\n    x = {convolution}\n    return {rule}\n"


def _opened(family: str, mixer: str, since: str) -> Patch:
    return Patch(
        name=f"transformers.gated_delta.{family}",
        target=f"transformers.models.{family}.modeling_{family}:{mixer}.forward",
        versions={"transformers": f"{since},<5.9"},
        reason=(
            "Before 5.9 the mixer takes no boundaries and calls its kernels without: they arrive by the names that upstream "
            "uses from 5.9 on. Also, the torch rule pads each document to a chunk of 64 tokens, and cannot be told a shorter "
            "one. Without the arguments nothing changes."
        ),
        edits=[
            parameter("seq_idx", default="None"),
            parameter("cu_seq_lens_q", default="None"),
            parameter("chunk_size", default="None"),
            required(_CONVOLUTION.format("$$$ARGS", "None")).set_argument("seq_idx", "seq_idx"),
            required(_RULE.format("$$$ARGS", "")).replace(_RULE.format("$$$ARGS", _CHUNK + _DOCUMENTS)),
        ],
        cases=[
            Case(
                before=_forward("", _CONVOLUTION.format("x=x", "None"), _RULE.format("x", "")),
                after=_forward(
                    ", *, seq_idx=None, cu_seq_lens_q=None, chunk_size=None",
                    _CONVOLUTION.format("x=x", "seq_idx"),
                    _RULE.format("x", _CHUNK + _DOCUMENTS),
                ),
            )
        ],
    )


def _chunked(family: str, mixer: str) -> Patch:
    convolution = _CONVOLUTION.format("x=x", "kwargs.get('seq_idx')")
    return Patch(
        name=f"transformers.gated_delta_chunk.{family}",
        target=f"transformers.models.{family}.modeling_{family}:{mixer}.forward",
        versions={"transformers": ">=5.9,<5.15"},
        reason=(
            "The torch rule pads each document to a chunk of 64 tokens; documents of 16 cost four times their tokens. It takes "
            "a chunk length, but before 5.15 the mixer cannot be told one. Without the argument nothing changes."
        ),
        edits=[
            parameter("chunk_size", default="None"),
            required(_RULE.format("$$$ARGS", "")).replace(_RULE.format("$$$ARGS", _CHUNK)),
        ],
        cases=[
            Case(
                before=_forward(", **kwargs", convolution, _RULE.format("x", "")),
                after=_forward(", *, chunk_size=None, **kwargs", convolution, _RULE.format("x", _CHUNK)),
            )
        ],
    )


PATCHES = (
    *(_opened(family, *entry) for family, entry in _MIXERS.items()),
    *(_chunked(family, mixer) for family, (mixer, _) in _MIXERS.items()),
)
