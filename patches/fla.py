"""fla: kernels of the gated delta rule report the boundaries that they are called with."""

from __future__ import annotations

from .kernel_reports import reporting

_DELTA = "fla.ops.gated_delta_rule"

PATCHES = (
    reporting(
        "fla.handshake.chunk_gated_delta_rule",
        f"{_DELTA}.chunk:chunk_gated_delta_rule",
        "chunk_gated_delta_rule",
        {"fla-core": ">=0.3.2"},
    ),
    # Where flash_qla is installed, fla hands calls to this method, and its own function does not run.
    reporting(
        "fla.handshake.flash_qla",
        f"{_DELTA}.backends.flash_qla:FlashQLABackend.chunk_gated_delta_rule",
        "chunk_gated_delta_rule",
        {"fla-core": ">=0.5.2"},
    ),
    reporting("fla.handshake.chunk_kda", "fla.ops.kda.chunk:chunk_kda", "chunk_kda", {"fla-core": ">=0.4"}),
)
