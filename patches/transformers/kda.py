"""Kimi delta attention (kimi_linear, bailing_hybrid, glm5_next): documents for the scan."""

from __future__ import annotations

from patchwork import Case, Patch, required

_MIXERS = {
    "kimi_linear": ("KimiLinearDeltaAttention", ">=5.17"),
    "bailing_hybrid": ("BailingHybridDeltaAttention", ">=5.20"),
    "glm5_next": ("Glm5NextTextLinearAttention", ">=5.16.1"),
}
_SCAN = (
    "chunk_kimi_delta_attention($Q, $K, $V, g=$G, beta=$BETA, initial_state=$STATE, output_final_state=$FINAL, "
    "use_qk_l2norm_in_kernel=True, **kwargs)"
)
_CASE = """\
def forward(self, q, k, v, g, **kwargs):
    return chunk_kimi_delta_attention(
        q, k, v, g=g, beta=1, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True, {}
    )
"""


def _patch(family: str, mixer: str, versions: str) -> Patch:
    return Patch(
        name=f"transformers.kda.{family}",
        target=f"transformers.models.{family}.modeling_{family}:{mixer}.forward",
        versions={"transformers": versions},
        reason=(
            "The scan gets the keywords of the call, in which boundaries are called `cu_seq_lens_q`; fla's kernel calls them "
            "`cu_seqlens`, and what a kernel has no parameter for is dropped on the way. The convolution beside it keeps "
            "documents apart, the scan does not."
        ),
        edits=[required(_SCAN).set_argument("cu_seqlens", 'kwargs.get("cu_seq_lens_q")')],
        fixed_when="chunk_kimi_delta_attention($$$ARGS, cu_seqlens=$BOUNDARIES)",
        cases=[
            Case(
                before=_CASE.format("**kwargs"),
                after=_CASE.format('**kwargs, cu_seqlens=kwargs.get("cu_seq_lens_q")'),
            ),
            Case(untouched=_CASE.format('cu_seqlens=kwargs.pop("cu_seq_lens_q", None), **kwargs')),
        ],
    )


PATCHES = tuple(_patch(family, *entry) for family, entry in _MIXERS.items())
