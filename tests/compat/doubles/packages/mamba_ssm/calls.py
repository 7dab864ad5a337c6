"""Which kernels of this package ran, in order, and the boundaries that each was given."""

from __future__ import annotations

import torch

calls: list[tuple[str, torch.Tensor | None]] = []
