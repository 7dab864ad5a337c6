"""Is running a mixer on documents side by side as fast as the row, and how much faster than a loop over documents?

One Qwen3.5 (else Qwen3-Next) mixer, 2,048 tokens, forward and backward, on the CPU. The peers: the stock forward on the
whole row, which leaks, and a plain Python loop over the documents. Interleaved repeats, medians.

    python benchmarks/mixer.py [--repeats 7] [--threads N]

Exit code 1 if a goal is missed: not slower than stock; 1.3 times as fast as the loop on 16 x 128, 4 times on 128 x 16.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers

from patchwork.packing.batching import plan, side_by_side
from patchwork.packing.boundaries import Boundaries
from patchwork.packing.mixers import mixer_of
from patchwork.packing.transport import short

TOKENS, HIDDEN = 2048, 512
NOISE = 1.05  # two runs of the same thing differ by this much
SKEWED = [1024, 400, 256, 128, 100, 60, 40, 20, 12, 8]
# Name: lengths, how much faster than the loop it has to be.
MIXES: dict[str, tuple[list[int], float]] = {
    "16 x 128": ([128] * 16, 1.3),
    "skewed": (SKEWED, 0.0),
    "128 x 16": ([16] * 128, 4.0),
}


def build() -> torch.nn.Module:
    """One mixer: 4 key heads and 8 value heads of 32."""
    settings = {
        "hidden_size": HIDDEN,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "num_hidden_layers": 1,
        "layer_types": ["linear_attention"],
    }
    torch.manual_seed(0)
    if hasattr(transformers, "Qwen3_5TextConfig"):
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

        mixer: torch.nn.Module = Qwen3_5GatedDeltaNet(transformers.Qwen3_5TextConfig(**settings), 0)
    else:
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

        mixer = Qwen3NextGatedDeltaNet(transformers.Qwen3NextConfig(**settings), 0)
    return mixer


def timed(run: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> float:
    """Seconds for a forward and a backward pass."""
    leaf = hidden.detach().requires_grad_()
    begin = time.perf_counter()
    torch.autograd.backward(run(leaf).sum())
    return time.perf_counter() - begin


def measure(mixer: torch.nn.Module, lengths: list[int], repeats: int) -> dict[str, float]:
    """Median seconds of each way."""
    boundaries = Boundaries.from_seq_lens(lengths)
    plan(boundaries)
    hidden = torch.randn(1, TOKENS, HIDDEN)
    entry = mixer_of(type(mixer))
    assert entry is not None

    def document_batch(part: torch.Tensor, _: object) -> torch.Tensor:
        result: torch.Tensor = mixer(part, **short(entry, part.shape[1]))
        return result

    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "stock": lambda row: mixer(row),
        "side by side": lambda row: side_by_side(document_batch, boundaries, row),
        "loop": lambda row: torch.cat([mixer(part) for part in torch.split(row, lengths, dim=1)], dim=1),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, run in ways.items():
            seconds = timed(run, hidden)
            if repeat:
                taken[name].append(seconds)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    mixer = build()
    print(f"{type(mixer).__name__}, transformers {transformers.__version__}, {TOKENS} tokens, forward and backward")
    print(f"{'mix':>10} {'stock':>8} {'ours':>8} {'loop':>8} {'ours/stock':>11} {'loop/ours':>10}")
    missed = []
    for name, (lengths, goal) in MIXES.items():
        seconds = measure(mixer, lengths, options.repeats)
        stock, ours, loop = seconds["stock"], seconds["side by side"], seconds["loop"]
        print(f"{name:>10} {stock:8.3f} {ours:8.3f} {loop:8.3f} {ours / stock:11.2f} {loop / ours:10.2f}")
        if ours > NOISE * stock:
            missed.append(f"{name}: {ours / stock:.2f} times the stock time")
        if loop < goal * ours:
            missed.append(f"{name}: {loop / ours:.2f} times as fast as the loop, the goal is {goal}")
    print("missed: " + "; ".join(missed) if missed else "all goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
