"""A double of mamba-ssm: its names, its contract, in plain torch. Like the real root it imports the kernels."""

from __future__ import annotations

import mamba_ssm.ops.triton.selective_state_update
import mamba_ssm.ops.triton.ssd_combined  # noqa: F401
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn

__version__ = "2.3.1"

__all__ = ["mamba_inner_fn", "selective_scan_fn"]
