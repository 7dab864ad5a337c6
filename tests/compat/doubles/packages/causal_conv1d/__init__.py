"""A double of causal-conv1d: its names, its contract, in plain torch."""

from __future__ import annotations

from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_update

__version__ = "1.6.1"

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]
