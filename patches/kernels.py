"""causal_conv1d, fla and mamba_ssm: kernels report the boundaries that they are called with."""

from __future__ import annotations

from patchwork import Case, Patch, at_start


def _patch(name: str, target: str, kernel: str, versions: dict[str, str]) -> Patch:
    report = f"from patchwork.packing.hooks import saw\nsaw({kernel!r}, locals())"
    before, after = f'def {kernel}(x, **kwargs):\n    """Doc."""\n', "    return x\n"
    return Patch(
        name=name,
        target=target,
        versions=versions,
        reason=(
            "Whether boundaries reach a kernel is seen by the kernel alone: what calls it may drop or rename them on the way. "
            "It reports its arguments to the packed call that it is in; in any other call that does nothing."
        ),
        edits=[at_start(report)],
        cases=[Case(before=before + after, after=before + "    " + report.replace("\n", "\n    ") + "\n" + after)],
    )


_DELTA = "fla.ops.gated_delta_rule"
_SSD = "mamba_ssm.ops.triton.ssd_combined"

PATCHES = (
    _patch(
        "causal_conv1d.handshake.causal_conv1d_fn",
        "causal_conv1d.causal_conv1d_interface:causal_conv1d_fn",
        "causal_conv1d_fn",
        {"causal-conv1d": ">=1.2"},
    ),
    _patch(
        "fla.handshake.chunk_gated_delta_rule",
        f"{_DELTA}.chunk:chunk_gated_delta_rule",
        "chunk_gated_delta_rule",
        {"fla-core": ">=0.3.2"},
    ),
    # Where flash_qla is installed, fla hands calls to this method, and its own function does not run.
    _patch(
        "fla.handshake.flash_qla",
        f"{_DELTA}.backends.flash_qla:FlashQLABackend.chunk_gated_delta_rule",
        "chunk_gated_delta_rule",
        {"fla-core": ">=0.5.2"},
    ),
    _patch("fla.handshake.chunk_kda", "fla.ops.kda.chunk:chunk_kda", "chunk_kda", {"fla-core": ">=0.4"}),
    _patch(
        "mamba_ssm.handshake.mamba_chunk_scan_combined",
        f"{_SSD}:mamba_chunk_scan_combined",
        "mamba_chunk_scan_combined",
        {"mamba-ssm": ">=2.0"},
    ),
    _patch(
        "mamba_ssm.handshake.mamba_split_conv1d_scan_combined",
        f"{_SSD}:mamba_split_conv1d_scan_combined",
        "mamba_split_conv1d_scan_combined",
        {"mamba-ssm": ">=2.0"},
    ),
)
