"""mamba_ssm: scans report the boundaries that they are called with."""

from __future__ import annotations

from .kernel_reports import reporting

_SSD = "mamba_ssm.ops.triton.ssd_combined"

PATCHES = (
    reporting(
        "mamba_ssm.handshake.mamba_chunk_scan_combined",
        f"{_SSD}:mamba_chunk_scan_combined",
        "mamba_chunk_scan_combined",
        {"mamba-ssm": ">=2.0"},
    ),
    reporting(
        "mamba_ssm.handshake.mamba_split_conv1d_scan_combined",
        f"{_SSD}:mamba_split_conv1d_scan_combined",
        "mamba_split_conv1d_scan_combined",
        {"mamba-ssm": ">=2.0"},
    ),
)
