"""Compares recurrent mixers on documents side by side with the leaking row, and times boundaries against a forward.

Mixers of five families, forward and backward, float32 on the CPU, rows of about 2,048 tokens. The way of patchwork (a mixer as
`isolate` leaves it) takes turns with the peers: the stock mixer on the row, which leaks, and, once, a loop over the documents.
Whole models are in packing.py.

    python benchmarks/mixers.py [--repeats 3] [--threads 1] [--families gated-delta,mamba-2,...]   # about ten minutes

The mixes are the demo's docstrings, "mean 256" and so on, the same lengths, stretched, and some rows of extremes.

Exit code 1 if a goal is missed: 0.95 x the speed of stock on docstrings, faster than stock from a mean of 256 on (a short
convolution, all of whose work is per token: 0.95 there too); boundaries, plan and handshake at most 2% of a forward of 2,048
tokens at hidden size 1,024. All patches are applied.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
import transformers
from documents import Mix, described, docstring_lengths, sampled, stretched
from measuring import Step, clock, closing, measure, verdict

import patchwork
from patchwork.packing.boundaries import Boundaries
from patchwork.packing.isolation import restore
from patchwork.packing.models.kernels import gap, resets
from patchwork.packing.models.mixers import mixer_of
from patchwork.packing.runtime.call_boundaries import resolve
from patchwork.packing.runtime.call_scope import LAYER, NATIVE, Scope, within
from patchwork.packing.runtime.document_batching import group, plan
from patchwork.packing.runtime.handshake import confirm, saw
from patchwork.packing.runtime.markers import Flag
from patchwork.packing.runtime.wrappers import mark

HIDDEN = 512
MEANS = (256, 512, 1024)
GOAL_DOCSTRINGS, GOAL_LONGER, GOAL_BOOKKEEPING = 0.95, 1.0, 0.02

Run = Callable[[torch.Tensor], torch.Tensor]


def mixes() -> Iterator[Mix]:
    lengths = docstring_lengths()
    print(described("docstrings", lengths))
    yield Mix("docstrings", sampled(lengths), GOAL_DOCSTRINGS)
    for mean in MEANS:
        yield Mix(f"mean {mean}", sampled(stretched(lengths, mean)), GOAL_LONGER)
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


def ways(mixer: torch.nn.Module, row: list[int]) -> dict[str, Step]:
    """How a mixer runs on a row of documents; the boundaries and the plan are there, as they are in all layers but one."""
    hidden = torch.randn(1, sum(row), HIDDEN)
    boundaries = Boundaries.from_seq_lens(row)
    plan(boundaries)

    def ours(hidden: torch.Tensor) -> torch.Tensor:
        with within(Scope(boundaries, LAYER)):
            return called(mixer, hidden)

    def loop(hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([called(mixer, part) for part in torch.split(hidden, row, dim=1)], dim=1)

    def step(run: Run) -> Step:
        return lambda: torch.autograd.backward(run(hidden.detach().requires_grad_()).sum())

    return {"stock": step(lambda hidden: called(mixer, hidden)), "ours": step(ours), "loop": step(loop)}


def report(family: str, mixer: torch.nn.Module, mix: Mix, repeats: int) -> bool:
    """Prints the line of a mix; whether its goal is met."""
    rows = [ways(mixer, row) for row in mix.rows]
    took = measure({name: [row[name] for row in rows] for name in rows[0]}, repeats, once=("loop",))
    stock, ours, loop = took["stock"], took["ours"], took["loop"]
    told, met = verdict(stock.seconds / ours.seconds, goal_of(family, mix))
    padded = sum(max(row[number] for number in members) * len(members) for row in mix.rows for members in group(row))
    padding = padded / sum(mix.lengths)
    loops, memory = loop.seconds / ours.seconds, ours.peak / stock.peak
    print(f"{family:<12} {mix!s:<28} {ours.seconds:7.3f} {padding:8.2f} {loops:6.1f} {memory:7.2f}  {told}", flush=True)
    return met


def goal_of(family: str, mix: Mix) -> float:
    """A short convolution has nothing to gain: all its work is per token, on the row as on documents."""
    return min(mix.goal, GOAL_DOCSTRINGS) if family == "convolution" else mix.goal


# ---- the bookkeeping ----------------------------------------------------------------------------------------------


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
    parser.add_argument("--families", default=",".join((*MIXERS, "bookkeeping")))
    options = parser.parse_args()
    chosen = options.families.split(",")
    torch.set_num_threads(options.threads)
    patchwork.apply()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {options.threads} threads, hidden size {HIDDEN}")
    every = list(mixes())
    print("speed: times stock, which leaks. loop: times as slow. padding: places a token. memory: times stock\n")
    print(f"{'mixer':<12} {'documents':<28} {'seconds':>7} {'padding':>8} {'loop':>6} {'memory':>7}  speed")
    met = []
    for family in [name for name in chosen if name in MIXERS]:
        mixer = build(family)
        if mixer is None:
            print(f"{family:<12} not in transformers {transformers.__version__}")
            continue
        met += [report(family, mixer, mix, options.repeats) for mix in every]
    if "bookkeeping" in chosen:
        met.append(bookkeeping(every[0].rows[-1], options.repeats))
    return closing(met)


if __name__ == "__main__":
    sys.exit(main())
