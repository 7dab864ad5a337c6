"""Are recurrent mixers as fast on documents side by side as on the leaking row, and what do boundaries cost beside a forward?

Mixers of five families and a small whole model, forward and backward, float32 on the CPU, rows of about 2,048 tokens. The way
of patchwork (a mixer as `isolate` leaves it) takes turns with the peers: the stock mixer on the row, which leaks, and, once, a
loop over the documents. Seconds are the median of several turns, summed over the rows of a mix. On one thread, which is the
default, they are those of the processor, so that other processes hardly count; on more they pass on the clock. Memory is what
is kept for the backward pass: the storages that autograd saves, each once, without parameters.

    python benchmarks/packing.py [--repeats 3] [--threads 1] [--families gated-delta,mamba-2,...]   # about ten minutes

Docstrings are those of the standard library, a token a byte, documents of more than 1,024 tokens cut, packed best fit decreasing
into rows of 2,048, of which every so many are run. "mean 256" and so on are the same lengths, stretched.

Exit code 1 if a goal is missed: 0.95 x the speed of stock on docstrings, faster than stock from a mean of 256 on (a short
convolution, all of whose work is per token: 0.95 there too); boundaries, plan and handshake at most 2% of a forward of 2,048
tokens at hidden size 1,024. All patches are applied.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
import transformers

import patchwork
from patchwork.demo_data import standard_library_docstrings
from patchwork.packing.ambient import LAYER, NATIVE, Scope, within
from patchwork.packing.batching import group, plan
from patchwork.packing.boundaries import Boundaries
from patchwork.packing.flags import Flag
from patchwork.packing.handshake import confirm, saw
from patchwork.packing.isolation import isolate, restore
from patchwork.packing.kernels import gap, resets
from patchwork.packing.mixers import mixer_of
from patchwork.packing.resolution import resolve
from patchwork.packing.transport import mark

TOKENS, HIDDEN, ROWS = 2048, 512, 5
LONGEST_DOCSTRING = 1024
MEANS = (256, 512, 1024)
GOAL_DOCSTRINGS, GOAL_LONGER, GOAL_BOOKKEEPING = 0.95, 1.0, 0.02

Run = Callable[[torch.Tensor], torch.Tensor]
Case = tuple[torch.Tensor, Mapping[str, Run]]  # a row, and the ways to run it


# ---- documents ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """Rows of document lengths, and how fast they have to run: at least so many times stock; 0 is no goal."""

    name: str
    rows: list[list[int]]
    goal: float = 0.0

    def __str__(self) -> str:
        lengths = [length for row in self.rows for length in row]
        return f"{self.name} ({len(lengths)} documents)"


def docstring_lengths() -> list[int]:
    """In tokens: a byte is one, and so is the end of a document."""
    return [min(len(text.encode()) + 1, LONGEST_DOCSTRING) for text in standard_library_docstrings(300_000)]


def stretched(lengths: list[int], mean: float) -> list[int]:
    """Lengths of the same shape with about this mean, none longer than a row."""
    low, high = 0.0, 100.0
    for _ in range(40):
        factor = (low + high) / 2
        made = [min(max(1, round(factor * length)), TOKENS) for length in lengths]
        low, high = (factor, high) if statistics.mean(made) < mean else (low, factor)
    return made


def packed(lengths: list[int]) -> list[list[int]]:
    """Best fit decreasing: each document goes to the fullest row that still has room."""
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= TOKENS]
        if fitting:
            max(fitting, key=sum).append(length)
        else:
            rows.append([length])
    return rows


def sample(rows: list[list[int]]) -> list[list[int]]:
    """Rows from the middle of equal parts of all: those of long documents come first, those of short ones last."""
    return [rows[(2 * number + 1) * len(rows) // (2 * ROWS)] for number in range(ROWS)]


def mixes() -> Iterator[Mix]:
    lengths = docstring_lengths()
    short = sum(length < 64 for length in lengths) / len(lengths)
    print(f"docstrings: {len(lengths)} documents, mean {statistics.mean(lengths):.0f} tokens, {short:.0%} under 64")
    yield Mix("docstrings", sample(packed(lengths)), GOAL_DOCSTRINGS)
    for mean in MEANS:
        yield Mix(f"mean {mean}", sample(packed(stretched(lengths, mean))), GOAL_LONGER)
    yield Mix("16 x 128", [[128] * 16])
    yield Mix("128 x 16", [[16] * 128])
    yield Mix("skewed", [[1024, 400, 256, 128, 100, 60, 40, 20, 12, 8]])


# ---- mixers -------------------------------------------------------------------------------------------------------

WIDTHS = {"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
MAMBA = {"mamba_n_heads": HIDDEN // 32, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
# Family of the benchmark: folders in transformers, the first that is there; class of the mixer and of the config; settings.
MIXERS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "gated-delta": [
        ("qwen3_5", "Qwen3_5GatedDeltaNet", "Qwen3_5TextConfig", WIDTHS),
        ("qwen3_next", "Qwen3NextGatedDeltaNet", "Qwen3NextConfig", WIDTHS),
    ],
    "mamba-2": [("bamba", "BambaMixer", "BambaConfig", {**HEADS, **MAMBA})],
    "falcon-h1": [("falcon_h1", "FalconH1Mixer", "FalconH1Config", {**HEADS, **MAMBA, "mamba_d_ssm": 2 * HIDDEN})],
    "convolution": [("lfm2", "Lfm2ShortConv", "Lfm2Config", {**HEADS, "layer_types": ["conv", "full_attention"]})],
    "lightning": [
        (
            "minimax",
            "MiniMaxLightningAttention",
            "MiniMaxConfig",
            {**HEADS, "head_dim": 64, "layer_types": ["linear_attention", "full_attention"]},
        )
    ],
}


def build(family: str) -> torch.nn.Module | None:
    """The mixer of a family, as `isolate` leaves one without kernels; None if the release has none."""
    for folder, name, config, settings in MIXERS[family]:
        if hasattr(transformers, config):
            torch.manual_seed(0)
            kind = getattr(import_module(f"transformers.models.{folder}.modeling_{folder}"), name)
            mixer: torch.nn.Module = kind(getattr(transformers, config)(hidden_size=HIDDEN, num_hidden_layers=2, **settings), 0)
            if family == "falcon-h1" and not hasattr(mixer, "mup_vector"):
                mixer.register_buffer("mup_vector", torch.ones(1))  # the model does it
            mark(mixer, Flag(kind, "mixer", mixer_of(kind), path=family, native=False))
            return mixer
    return None


def called(mixer: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """The mixer on rows, with the arguments that it cannot do without."""
    told = {"position_embeddings": None, "attention_mask": None} if "MiniMax" in type(mixer).__name__ else {}
    output = mixer(hidden, **told)
    return output if isinstance(output, torch.Tensor) else output[0]


def ways(mixer: torch.nn.Module, row: list[int]) -> dict[str, Run]:
    """How a mixer runs on a row of documents; the boundaries and the plan are there, as they are in all layers but one."""
    boundaries = Boundaries.from_seq_lens(row)
    plan(boundaries)

    def ours(hidden: torch.Tensor) -> torch.Tensor:
        with within(Scope(boundaries, LAYER)):
            return called(mixer, hidden)

    def loop(hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([called(mixer, part) for part in torch.split(hidden, row, dim=1)], dim=1)

    return {"stock": lambda hidden: called(mixer, hidden), "ours": ours, "loop": loop}


# ---- measuring ----------------------------------------------------------------------------------------------------


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(run: Run, hidden: torch.Tensor) -> float:
    """Seconds for a forward and a backward pass."""
    leaf = hidden.detach().requires_grad_()
    begin = clock()
    torch.autograd.backward(run(leaf).sum())
    return clock() - begin


def kept(run: Run, hidden: torch.Tensor, parameters: set[int]) -> int:
    """Bytes that a forward keeps for its backward pass."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor  # and so it stays alive, and no other storage gets its address

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run(hidden.detach().requires_grad_())
    del output
    return sum(storages.values())


def measure(cases: list[Case], repeats: int) -> dict[str, float]:
    """Seconds of each way for all rows: for each row the median of several turns, in which the ways take turns. The first
    turn is left out, but of the loop it is the only one."""
    total: dict[str, float] = {}
    for hidden, runs in cases:
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(repeats + 1):
            for name, run in runs.items():
                if name != "loop" or repeat == 1:
                    taken[name].append(timed(run, hidden))
        for name, seconds in taken.items():
            total[name] = total.get(name, 0.0) + statistics.median(seconds[1:] or seconds)
    return total


def verdict(value: float, goal: float) -> tuple[str, bool]:
    """A speed beside its goal, and whether it is met. A goal of 0 is none."""
    if not goal:
        return f"{value:5.2f}", True
    return f"{value:5.2f} (at least {goal:g}: {'met' if value >= goal else 'MISSED'})", value >= goal


def report(title: str, module: torch.nn.Module, mix: Mix, cases: list[Case], repeats: int) -> bool:
    """Prints the line of a mix; whether its goal is met."""
    taken = measure(cases, repeats)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in (*module.parameters(), *module.buffers())}
    stock, ours = (sum(kept(runs[name], hidden, parameters) for hidden, runs in cases) for name in ("stock", "ours"))
    told, met = verdict(taken["stock"] / taken["ours"], goal_of(title, mix))
    loop = f"{taken['loop'] / taken['ours']:6.1f}" if "loop" in taken else f"{'':6}"
    padded = sum(max(row[number] for number in members) * len(members) for row in mix.rows for members in group(row))
    padding = padded / sum(map(sum, mix.rows))
    print(f"{title:<12} {mix!s:<28} {taken['ours']:7.3f} {padding:8.2f} {loop} {ours / stock:7.2f}  {told}", flush=True)
    return met


def goal_of(title: str, mix: Mix) -> float:
    """A short convolution has nothing to gain: all its work is per token, on the row as on documents."""
    return min(mix.goal, GOAL_DOCSTRINGS) if title == "convolution" else mix.goal


# ---- the whole model, and the bookkeeping ---------------------------------------------------------------------------


def model(hidden: int, layers: int) -> torch.nn.Module:
    """The backbone of Qwen3.5, else of Qwen3-Next; every fourth layer is attention."""
    torch.manual_seed(0)
    settings = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention" if number % 4 == 3 else "linear_attention" for number in range(layers)],
        "vocab_size": 256,
        "head_dim": 64,
        "pad_token_id": None,
        **HEADS,
        **WIDTHS,
    }
    if hasattr(transformers, "Qwen3_5TextModel"):
        return transformers.Qwen3_5TextModel(transformers.Qwen3_5TextConfig(**settings)).train()
    config = transformers.Qwen3NextConfig(**settings, mlp_only_layers=list(range(layers)))
    return transformers.Qwen3NextModel(config).train()


def whole(backbone: torch.nn.Module, row: list[int]) -> tuple[torch.Tensor, dict[str, Run]]:
    positions = Boundaries.from_seq_lens(row).position_ids

    def stock(hidden: torch.Tensor) -> torch.Tensor:
        restore(backbone)
        output: torch.Tensor = backbone(inputs_embeds=hidden, position_ids=positions, use_cache=False).last_hidden_state
        return output

    def ours(hidden: torch.Tensor) -> torch.Tensor:
        isolate(backbone, native=False)
        output: torch.Tensor = backbone(inputs_embeds=hidden, position_ids=positions, use_cache=False).last_hidden_state
        return output

    return torch.randn(1, sum(row), HIDDEN), {"stock": stock, "ours": ours}


def bookkeeping(row: list[int], repeats: int) -> bool:
    """Whether boundaries, plan and handshake of a call cost little beside its forward."""
    layers, hidden = 4, 1024
    backbone = model(hidden, layers)
    restore(backbone)
    mixers = [module for module in backbone.modules() if mixer_of(type(module)) is not None and hasattr(module, "conv1d")]
    entry = mixer_of(type(mixers[0]))
    assert entry is not None
    embeddings = torch.randn(1, sum(row), hidden)
    arguments = {"inputs_embeds": embeddings, "position_ids": Boundaries.from_seq_lens(row).position_ids}

    def keep_books() -> None:
        boundaries = resolve(arguments)
        assert boundaries is not None
        plan(boundaries)
        for mixer in mixers:
            gap(mixer, entry, boundaries)
            scope = Scope(boundaries, NATIVE, "mixer")
            with within(scope):
                # Copies, so that values are compared: the kernel of a mixer that made its own would be told such.
                saw("causal_conv1d_fn", {"seq_idx": boundaries.seq_idx.clone()})
                saw("chunk_gated_delta_rule", {"cu_seqlens": boundaries.cu_seqlens.clone()})
            confirm(scope, resets(entry))

    forwards, books = [], []
    with torch.no_grad():
        for _ in range(repeats + 1):
            begin = clock()
            backbone(inputs_embeds=embeddings, position_ids=arguments["position_ids"], use_cache=False)
            middle = clock()
            for _ in range(20):
                keep_books()
            forwards.append(middle - begin)
            books.append((clock() - middle) / 20)
    share = statistics.median(book / forward for book, forward in zip(books[1:], forwards[1:], strict=True))
    met = share <= GOAL_BOOKKEEPING
    print(
        f"boundaries, plan and handshake of {len(row)} documents: {1000 * statistics.median(books[1:]):.2f} ms, {share:.2%} of a "
        f"forward of {sum(row)} tokens at hidden size {hidden}, {layers} layers ({statistics.median(forwards[1:]):.2f} s) "
        f"(at most {GOAL_BOOKKEEPING:.0%}: {'met' if met else 'MISSED'})",
        flush=True,
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--families", default=",".join((*MIXERS, "whole model", "bookkeeping")))
    options = parser.parse_args()
    chosen = options.families.split(",")
    torch.set_num_threads(options.threads)
    patchwork.apply()
    seconds = "CPU seconds" if options.threads == 1 else "seconds"
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {options.threads} threads, hidden size {HIDDEN}")
    every = list(mixes())
    print("speed: times stock, which leaks. loop: times as slow. padding: places a token. memory: times stock\n")
    print(f"{'mixer':<12} {'documents':<28} {seconds[:3]:>7} {'padding':>8} {'loop':>6} {'memory':>7}  speed")
    met = []
    for family in [name for name in chosen if name in MIXERS]:
        mixer = build(family)
        if mixer is None:
            print(f"{family:<12} not in transformers {transformers.__version__}")
            continue
        for mix in every:
            cases = [(torch.randn(1, sum(row), HIDDEN), ways(mixer, row)) for row in mix.rows]
            met.append(report(family, mixer, mix, cases, options.repeats))
    if "whole model" in chosen:
        backbone = model(HIDDEN, layers=4)
        for mix in every[: 1 + len(MEANS)]:
            fewer = replace(mix, rows=mix.rows[::2])
            met.append(report("whole model", backbone, fewer, [whole(backbone, row) for row in fewer.rows], options.repeats))
    if "bookkeeping" in chosen:
        met.append(bookkeeping(every[0].rows[-1], options.repeats))
    missed = met.count(False)
    print(f"\n{missed} goals missed" if missed else "\nall goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
