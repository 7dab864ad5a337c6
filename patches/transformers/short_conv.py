"""Short convolutions of LFM2: the kernel is given the documents of the row."""

from __future__ import annotations

from patchwork import Patch

from .cuda_kernels_forward import kernel_patches

_CONVOLUTION = "causal_conv1d_fn($X, $WEIGHTS, $BIAS, activation=None)"


def _short_conv(family: str, mixer: str, since: str) -> tuple[Patch, Patch]:
    body = "\n    return causal_conv1d_fn(x, self.w, self.b, activation=None{})\n"
    return kernel_patches(
        f"transformers.short_conv.{family}",
        f"transformers.models.{family}.modeling_{family}:{mixer}",
        f"{since},<5.12",
        [_CONVOLUTION],
        "Before 5.12 the mixer does not tell its kernel of documents. Without the argument nothing changes.",
        "def cuda_kernels_forward(self, x):" + body.format(""),
        "def cuda_kernels_forward(self, x, *, seq_idx=None):" + body.format(", seq_idx=seq_idx"),
    )


PATCHES = (
    *_short_conv("lfm2", "Lfm2ShortConv", ">=4.57"),
    *_short_conv("lfm2_moe", "Lfm2MoeShortConv", ">=5.0"),
)
