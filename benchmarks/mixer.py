"""Is running a mixer on documents side by side as fast as the row, and how much faster than a loop over documents?

One Qwen3.5 (else Qwen3-Next) mixer, 2,048 tokens, forward and backward, on the CPU. The peers: the stock forward on the
whole row, which leaks, and a plain Python loop over the documents. The three ways take turns; a ratio is the median of the
ratios within a turn, so that a busy machine slows both sides of it.

    python benchmarks/mixer.py [--repeats 7] [--threads N]

Exit code 1 if a goal is missed: not slower than stock; 1.3 times as fast as the loop on 16 x 128, 4 times on 128 x 16.

All patches are applied, since before transformers 5.15 a mixer learns of its chunk length through one of them. The loop can be
as fast on 16 x 128 where there is one thread only; 1.3 is a goal for two.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import transformers

import patchwork
from patchwork.packing.batching import plan, side_by_side
from patchwork.packing.boundaries import Boundaries
from patchwork.packing.mixers import mixer_of, takes_chunk
from patchwork.packing.transport import short

TOKENS, HIDDEN = 2048, 512
NOISE = 1.05  # two runs of the same thing differ by this much
WIDTHS = {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
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
        **WIDTHS,
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


def measure(mixer: torch.nn.Module, lengths: list[int], repeats: int) -> dict[str, list[float]]:
    """Seconds of each way, turn by turn, the first turn left out."""
    boundaries = Boundaries.from_seq_lens(lengths)
    plan(boundaries)
    hidden = torch.randn(1, TOKENS, HIDDEN)
    entry = mixer_of(type(mixer))
    assert entry is not None
    entry = entry if takes_chunk(entry, type(mixer).forward)() else replace(entry, chunk="")

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
    return taken


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def verdict(value: float, goal: float, most: bool) -> tuple[str, bool]:
    """A ratio beside its goal, and whether the goal is met; ``most``: the goal is a maximum. A goal of 0 is none."""
    if not goal:
        return f"{value:5.2f}   (no goal)", True
    met = value <= NOISE * goal if most else value >= goal
    return f"{value:5.2f}   ({'at most' if most else 'at least'} {goal}: {'met' if met else 'MISSED'})", met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    patchwork.apply()
    mixer = build()
    print(f"{type(mixer).__name__}, transformers {transformers.__version__}, torch {torch.__version__}, float32 on the CPU")
    heads = f"{WIDTHS['linear_num_key_heads']} key and {WIDTHS['linear_num_value_heads']} value heads of 32"
    print(f"{TOKENS} tokens of width {HIDDEN}, {heads}, {torch.get_num_threads()} threads")
    print(f"forward and backward in seconds, median of {options.repeats}; stock leaks, ours and the loop do not\n")
    header = f"{'documents':>9} {'stock':>7} {'ours':>7} {'loop':>7}   {'ours / stock':<29} {'loop / ours':<29}"
    print(header.rstrip())
    missed = 0
    for name, (lengths, goal) in MIXES.items():
        taken = measure(mixer, lengths, options.repeats)
        stock, ours, loop = taken.values()
        seconds = " ".join(f"{statistics.median(each):7.3f}" for each in (stock, ours, loop))
        against_stock, first = verdict(ratio(ours, stock), 1.0, most=True)
        against_loop, second = verdict(ratio(loop, ours), goal, most=False)
        print(f"{name:>9} {seconds}   {against_stock:<29} {against_loop}", flush=True)
        missed += (not first) + (not second)
    print(f"\n{missed} goals missed" if missed else "\nall goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
