"""causal_conv1d: the convolution reports the boundaries that it is called with."""

from __future__ import annotations

from .kernel_reports import reporting

PATCHES = (
    reporting(
        "causal_conv1d.handshake.causal_conv1d_fn",
        "causal_conv1d.causal_conv1d_interface:causal_conv1d_fn",
        "causal_conv1d_fn",
        {"causal-conv1d": ">=1.2"},
    ),
)
