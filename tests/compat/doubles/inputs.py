"""Small inputs for each kernel that takes boundaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def conv_inputs(rows: int, length: int) -> Tensors:
    """Channels last."""
    return {"x": random(rows, length, 16, seed=0).transpose(1, 2), "weight": random(16, 4, seed=1), "bias": random(16, seed=2)}


def delta_inputs(rows: int, length: int, gate: tuple[int, ...] = ()) -> Tensors:
    """Two heads of 8, four value heads of 6."""
    keys = {name: random(rows, length, 2, 8, seed=seed) for seed, name in enumerate("qk")}
    g = -random(rows, length, 4, *gate, seed=3).abs()
    return {**keys, "v": random(rows, length, 4, 6, seed=2), "g": g, "beta": random(rows, length, 4, seed=4).sigmoid()}


def kimi_inputs(rows: int, length: int) -> Tensors:
    return delta_inputs(rows, length, (8,))


def scan_inputs(rows: int, length: int) -> Tensors:
    """Four heads of 6, two groups, states of 5."""
    parts = {name: random(rows, length, 2, 5, seed=seed) for seed, name in enumerate("BC")}
    numbers = {name: random(4, seed=seed) for seed, name in enumerate(("A", "D", "dt_bias"), 5)}
    inputs = {**parts, **numbers, "x": random(rows, length, 4, 6, seed=3), "dt": random(rows, length, 4, seed=4)}
    return {**inputs, "A": -inputs["A"].exp()}


def split_inputs(rows: int, length: int) -> Tensors:
    """Eight heads of 6, two groups, states of 4: 64 channels go through the convolution."""
    numbers = {name: random(8, seed=seed) for seed, name in enumerate(("A", "D", "dt_bias"), 5)}
    inputs = {"zxbcdt": random(rows, length, 48 + 64 + 8, seed=0), **numbers, "A": -numbers["A"].exp()}
    weights = {"conv1d_weight": random(64, 4, seed=1), "conv1d_bias": random(64, seed=2)}
    return {**inputs, **weights, "rmsnorm_weight": random(48, seed=3), "outproj_weight": random(7, 48, seed=4)}


SPLIT = {"chunk_size": 8, "headdim": 6, "ngroups": 2, "norm_before_gate": False}
# Inputs, other arguments, the argument of the boundaries, those of the inputs that run along the row.
KERNELS: dict[str, tuple[Callable[[int, int], Tensors], dict[str, Any], str, str]] = {
    "causal_conv1d_fn": (conv_inputs, {"activation": "silu"}, "seq_idx", "x"),
    "chunk_gated_delta_rule": (delta_inputs, {"use_qk_l2norm_in_kernel": True}, "cu_seqlens", "q k v g beta"),
    "fused_recurrent_gated_delta_rule": (delta_inputs, {}, "cu_seqlens", "q k v g beta"),
    "chunk_kda": (kimi_inputs, {"use_qk_l2norm_in_kernel": True}, "cu_seqlens", "q k v g beta"),
    "mamba_chunk_scan_combined": (scan_inputs, {"chunk_size": 8, "dt_softplus": True}, "seq_idx", "x dt B C"),
    "mamba_split_conv1d_scan_combined": (split_inputs, SPLIT, "seq_idx", "zxbcdt"),
}
BY_ROW = [name for name, (_, _, argument, _) in KERNELS.items() if argument == "seq_idx"]
BY_LENGTH = [name for name in KERNELS if name not in BY_ROW]
