"""Gated delta nets (qwen3_next, qwen3_5, qwen3_5_moe): short documents need no chunk of 64 tokens."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, parameter, required

_MIXERS = {
    "qwen3_next": ("Qwen3NextGatedDeltaNet", ">=4.57,<5.15"),
    "qwen3_5": ("Qwen3_5GatedDeltaNet", ">=5.2,<5.15"),
    "qwen3_5_moe": ("Qwen3_5MoeGatedDeltaNet", ">=5.2,<5.15"),
}
_BEFORE = "self.chunk_gated_delta_rule({}, use_qk_l2norm_in_kernel=True)"
_AFTER = (
    "self.chunk_gated_delta_rule({}, use_qk_l2norm_in_kernel=True, "
    "**({{}} if chunk_size is None else {{'chunk_size': chunk_size}}))"
)


def _patch(family: str, mixer: str, versions: str) -> Patch:
    return Patch(
        name=f"transformers.gated_delta.{family}",
        target=f"transformers.models.{family}.modeling_{family}:{mixer}.forward",
        versions={"transformers": versions},
        reason=(
            "The torch rule pads each document to a chunk of 64 tokens; documents of 16 cost four times their tokens. It takes "
            "a chunk length, but before 5.15 the mixer cannot be told one. Without the argument nothing changes."
        ),
        edits=[
            parameter("chunk_size", default="None"),
            required(_BEFORE.format("$$$ARGS")).replace(_AFTER.format("$$$ARGS")),
        ],
        cases=[
            Case(
                before=f"def forward(self, x):\n    return {_BEFORE.format('x')}\n",
                after=f"def forward(self, x, *, chunk_size=None):\n    return {_AFTER.format('x')}\n",
            )
        ],
    )


PATCHES = tuple(_patch(family, *mixer) for family, mixer in _MIXERS.items())
