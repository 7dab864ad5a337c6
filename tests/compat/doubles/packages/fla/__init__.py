"""A double of flash-linear-attention: its names, its contract, in plain torch. Like fla-core, its root imports no kernels."""

from __future__ import annotations

__version__ = "0.6.0"
