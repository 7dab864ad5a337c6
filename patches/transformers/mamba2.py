"""Mamba-2 mixers: the convolution and the scan are given the documents of the row."""

from __future__ import annotations

from patchwork import Patch

from .cuda_kernels_forward import kernel_patches

_CONVOLUTION = "causal_conv1d_fn(x=$X, weight=$WEIGHT, bias=$BIAS, activation=$ACTIVATION)"
_SCANS = ("mamba_chunk_scan_combined($$$ARGS, seq_idx=None)", "mamba_split_conv1d_scan_combined($$$ARGS, seq_idx=None)")


def _mamba2(family: str, mixer: str, since: str) -> tuple[Patch, Patch]:
    body = """
    if self.training:
        return mamba_split_conv1d_scan_combined(x, seq_idx={}, **self.limits)
    x = causal_conv1d_fn(x=x, weight=self.w, bias=self.b, activation=self.a{})
    return mamba_chunk_scan_combined(x, seq_idx={}, z=None)
"""
    return kernel_patches(
        f"transformers.mamba2.{family}",
        f"transformers.models.{family}.modeling_{family}:{mixer}",
        f"{since},<5.15",
        [_CONVOLUTION, *_SCANS],
        "Before 5.15 the mixer tells its scan `seq_idx=None` and its convolution nothing, whatever it was given (bamba and "
        "granitemoehybrid, otherwise of the same text, hand it on). Without the argument nothing changes.",
        "def cuda_kernels_forward(self, x):" + body.format("None", "", "None"),
        "def cuda_kernels_forward(self, x, *, seq_idx=None):" + body.format("seq_idx", ", seq_idx=seq_idx", "seq_idx"),
    )


PATCHES = (
    *_mamba2("mamba2", "Mamba2Mixer", ">=4.57"),
    *_mamba2("falcon_h1", "FalconH1Mixer", ">=4.57"),
    *_mamba2("zamba2", "Zamba2MambaMixer", ">=4.57"),
    *_mamba2("nemotron_h", "NemotronHMamba2Mixer", ">=5.3"),
)
