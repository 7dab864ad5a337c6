"""Compares the training of whole models on packed rows: with patchwork, stock (which may leak), and padded.

Tiny models of four families (hidden size 256, four layers, float32, CPU, random weights, a vocabulary of bytes), a forward with
a loss and a backward pass, in training mode, without gradient checkpointing. Three ways take turns over the same documents:

    padded             right-padded batches with an attention mask, as a trainer makes them without packing: documents in a
                       shuffled order, as many to a batch as a packed row holds on average
    packed, stock      rows of 2,048 tokens with position ids that restart at each document; the model as transformers has it,
                       which leaks in some families: it is tried out, and said
    packed, patchwork  the same rows, the model isolated

    python benchmarks/packing.py [--repeats 2] [--threads 1] [--hidden 256] [--models llama,...]   # about nine minutes

Attention is sdpa where a model supports it, else eager. Speed is in real tokens a second; padding is no token. Exit code 1 if a
goal is missed: at least the speed of stock packed rows; at least 0.8 of what padding leaves to gain over padded batches, which
is how many times as many places as tokens they have; no leak with patchwork.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import transformers
from documents import Mix, batches, described, docstring_lengths, log_normal_lengths, sampled
from measuring import Cost, Step, closing, measure, verdict

import patchwork
from patchwork.packing.boundaries import Boundaries
from patchwork.packing.isolation import isolate, restore

LAYERS, HEAD, VOCABULARY = 4, 64, 258
GOAL_STOCK, GOAL_GAIN = 1.0, 0.8
LEAK = 1e-4  # of the largest logit; float32 noise lies far below
IGNORED = -100
PADDED, STOCK, OURS = "padded", "packed, stock", "packed, patchwork"

Arguments = dict[str, torch.Tensor]


# ---- models -------------------------------------------------------------------------------------------------------

DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": HEAD,
    "linear_value_head_dim": HEAD,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128}
# Of each name: classes in transformers, of which the first that is there is taken, without their endings; settings.
MODELS: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "llama": [("Llama", "Llama", {})],
    "qwen3.5": [
        ("Qwen3_5", "Qwen3_5Text", DELTA),
        ("Qwen3Next", "Qwen3Next", {**DELTA, "mlp_only_layers": list(range(LAYERS))}),
    ],
    "gpt_oss": [("GptOss", "GptOss", {**EXPERTS, "layer_types": ["sliding_attention", "full_attention"] * 2})],
    "lfm2": [("Lfm2", "Lfm2", {"block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"] * 2})],
}


def build(name: str, hidden: int) -> Any:
    """A model of a family, in training mode; None if the release has none."""
    for model, config, settings in MODELS[name]:
        if hasattr(transformers, f"{model}ForCausalLM"):
            shape = {
                "vocab_size": VOCABULARY,
                "hidden_size": hidden,
                "intermediate_size": hidden if name == "gpt_oss" else 3 * hidden,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": hidden // HEAD,
                "num_key_value_heads": 2,
                "head_dim": HEAD,
                "initializer_range": 0.05,  # at the usual 0.02 a leak hides
                "pad_token_id": None,
                "use_cache": False,
            }
            torch.manual_seed(0)
            made = getattr(transformers, f"{model}ForCausalLM")(getattr(transformers, f"{config}Config")(**{**shape, **settings}))
            return made.train()
    return None


# ---- documents in batches -----------------------------------------------------------------------------------------


def mixes() -> Iterator[Mix]:
    for name, lengths in (("docstrings", docstring_lengths()), ("log-normal", log_normal_lengths(median=256, spread=1.0))):
        print(described(name, lengths))
        yield Mix(name, sampled(lengths))


def tokens_of(mix: Mix) -> list[list[torch.Tensor]]:
    """Of each document of each row, tokens at random: what they are does not matter here."""
    chance = torch.Generator().manual_seed(0)
    return [[torch.randint(VOCABULARY, (length,), generator=chance) for length in row] for row in mix.rows]


def packed_rows(documents: list[list[torch.Tensor]]) -> list[Arguments]:
    """As TRL's collator makes them; a document's first token is not predicted from the one before it."""
    made = []
    for row in documents:
        positions = Boundaries.from_seq_lens([len(each) for each in row]).position_ids
        ids = torch.cat(row)[None]
        made.append({"input_ids": ids, "position_ids": positions, "labels": ids.masked_fill(positions == 0, IGNORED)})
    return made


def padded_batches(mix: Mix, documents: list[list[torch.Tensor]]) -> list[Arguments]:
    made = []
    for places in batches(mix.rows):
        batch = [documents[row][place] for row, place in places]
        ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in batch], batch_first=True)
        made.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)})
    return made


# ---- measuring ----------------------------------------------------------------------------------------------------


def leaks(model: Any, row: Arguments, first: int) -> bool:
    """Whether documents behind the first one change with its tokens."""
    other = {**row, "input_ids": row["input_ids"].clone()}
    other["input_ids"][:, :first] = (other["input_ids"][:, :first] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = (model(**arguments).logits[:, first:] for arguments in (row, other))
    return bool((before - after).abs().max() > LEAK * before.abs().max())


def steps(model: Any, calls: list[Arguments]) -> list[Step]:
    def step(arguments: Arguments) -> None:
        model(**arguments).loss.backward()  # gradients add up, so those of parameters are there before the second step

    return [partial(step, arguments) for arguments in calls]


def report(name: str, stock: Any, ours: Any, mix: Mix, repeats: int) -> list[bool]:
    """Prints what a model costs on a mix; whether its goals are met."""
    documents = tokens_of(mix)
    rows, padded = packed_rows(documents), padded_batches(mix, documents)
    tokens = sum(mix.lengths)
    ideal = sum(batch["input_ids"].numel() for batch in padded) / tokens
    print(
        f"\n{name}, {stock.config._attn_implementation}, on {mix}: {tokens} tokens, {len(rows)} rows, "
        f"{len(padded)} padded batches, {ideal:.2f} places a token"
    )
    leaking = {way: leaks(model, rows[-1], mix.rows[-1][0]) for way, model in ((STOCK, stock), (OURS, ours))}
    ways = {PADDED: steps(stock, padded), STOCK: steps(stock, rows), OURS: steps(ours, rows)}
    took = measure(ways, repeats, once=(PADDED,))
    for way, cost in took.items():
        leak = "  leaks" if leaking.get(way) else ""
        print(f"  {way:<18} {tokens / cost.seconds:8,.0f} tokens/s {cost.peak / 2**20:8,.0f} MiB{leak}")
    return verdicts(took, ideal, leaking[OURS])


def verdicts(took: dict[str, Cost], ideal: float, leaking: bool) -> list[bool]:
    speed, fast = verdict(took[STOCK].seconds / took[OURS].seconds, GOAL_STOCK)
    gain = took[PADDED].seconds / took[OURS].seconds
    share, worth = verdict(gain / ideal, GOAL_GAIN)
    memory = [took[OURS].peak / took[way].peak for way in (STOCK, PADDED)]
    print(
        f"  speed {speed} x stock; {gain:.2f} x padded: {share} of the ideal gain; memory {memory[0]:.2f} and {memory[1]:.2f} x"
    )
    if leaking:
        print("  documents LEAK with patchwork")
    sys.stdout.flush()
    return [fast, worth, not leaking]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    patchwork.apply()
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, {options.threads} threads, hidden size "
        f"{options.hidden}, {LAYERS} layers"
    )
    every = list(mixes())
    met: list[bool] = []
    for name in options.models.split(","):
        stock = build(name, options.hidden)
        if stock is None:
            print(f"\n{name}: not in transformers {transformers.__version__}")
            continue
        restore(stock)
        ours = copy.deepcopy(stock)
        isolate(ours)
        for mix in every:
            met += report(name, stock, ours, mix, options.repeats)
    return closing(met)


if __name__ == "__main__":
    sys.exit(main())
