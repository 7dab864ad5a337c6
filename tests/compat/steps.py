"""Optimizer steps of TRL's SFTTrainer, and of a plain loop in torch over the same documents, each forwarded alone.

What was in a step is read off the batches that the trainer was given: every document, or piece of one, begins with a token of
its own, so no boundaries are needed to find it again. The loop runs in a process where patchwork is never applied.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import families
import numpy as np
import test_sft
import tiny
import torch
import trl

from patchwork.packing.runtime.lost_boundaries import forget

ROW = 32
STEPS = 3
LOSS, PARAMETERS = 1e-5, 1e-4
MOVED = 1e-2  # some parameter's element, at the least, in three steps
LEAKS = 1e-3
# First tokens of documents and of pieces; all others are drawn from OTHERS, and 0 is padding.
FIRST, OTHERS = range(3, 40), (40, 92)

HYBRID = "qwen3_5" if "qwen3_5" in tiny.recurrent_names() else "qwen3_next"
MODELS = (HYBRID, "lfm2", "llama")
TWO_LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
# The gradients of the hybrids are larger; far larger steps would make their noise larger too.
RATES = {HYBRID: 0.01, "lfm2": 0.2, "llama": 0.2}


@dataclass(frozen=True)
class Piece:
    """What is to be forwarded alone: a document, or the part of one that a row holds. ``trained``: which tokens have a label."""

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]

    @property
    def predicted(self) -> int:
        """Its first token has nothing before it."""
        return sum(self.trained[1:])


@dataclass
class Run:
    """What a trainer did, or the loop: of each step, its micro batches' rows, labels, denominators and losses; at the end, all
    parameters. ``rate`` and ``clip``: of the optimizer. ``divisor``: what accelerate divides gradients by; it is told to by
    transformers 5.2 and 5.3, whose losses are divided already, so there gradients of accumulated batches are too small, packed
    or not."""

    rate: float
    clip: float
    divisor: int
    rows: list[list[list[list[int]]]] = field(default_factory=list)
    labels: list[list[list[list[int]]]] = field(default_factory=list)
    counts: list[list[float | None]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)


# ---- documents --------------------------------------------------------------------------------------------------


def pieces(lengths: Sequence[int], trained: Callable[[int, int], bool] = lambda number, place: True) -> list[Piece]:
    """Random pieces of these lengths. ``trained``: whether a token has a label, by the number of its piece and its place."""
    assert len(lengths) <= len(FIRST)
    generator = torch.Generator().manual_seed(3)
    made = []
    for number, length in enumerate(lengths):
        rest = torch.randint(*OTHERS, (length - 1,), generator=generator).tolist()
        made.append(Piece((FIRST[number], *rest), tuple(trained(number, place) for place in range(length))))
    return made


def cut(lengths: Sequence[int], strategy: str) -> list[list[int]]:
    """The lengths of the pieces of each document. `wrapped` cuts the stream of all documents at each row; the splitting
    strategies cut a document at each row that it fills."""
    found = []
    for end, length in zip(itertools.accumulate(lengths), lengths, strict=True):
        begin = end - length
        first = begin if strategy != "wrapped" else begin - begin % ROW
        cuts = [begin, *(place for place in range(first, end, ROW) if place > begin), end]
        found.append([after - before for before, after in itertools.pairwise(cuts)])
    return found


def dataset(documents: Sequence[Sequence[Piece]], column: str | None = None) -> datasets.Dataset:
    """One row a document. ``column``: how the tokens without a label are told: `labels`, or the name of a mask."""
    tokens = [[token for piece in document for token in piece.tokens] for document in documents]
    made = {"input_ids": tokens}
    if column is not None:
        marks = [[mark for piece in document for mark in piece.trained] for document in documents]
        made[column] = [
            [(token if mark else -100) if column == "labels" else int(mark) for token, mark in zip(*row, strict=True)]
            for row in zip(tokens, marks, strict=True)
        ]
    return datasets.Dataset.from_dict(made)


# ---- the trainer ------------------------------------------------------------------------------------------------


def build(name: str, **changes: Any) -> torch.nn.Module:
    """The same weights each time. Experts have no auxiliary loss: that of a packed row is not the mean of its documents'."""
    if name not in tiny.RECURRENT and name in families.names():
        torch.manual_seed(0)
        return families.build(name)
    settings = {**TWO_LAYERS, "router_aux_loss_coef": 0.0} if name in tiny.RECURRENT else {}
    return tiny.build(name, **settings, **changes)


def train(
    name: str,
    folder: Path,
    data: Any,
    *,
    model: torch.nn.Module | None = None,
    before_loss: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    accumulation: int = 1,
    **settings: Any,
) -> Run:
    """Trains a model of this name, or the one that is given, for three steps of two rows.

    ``before_loss`` takes a batch and returns the one whose loss is computed.
    """
    kept: list[tuple[Any, Any, float | None, float]] = []

    class Recording(trl.SFTTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            tokens, labels = inputs["input_ids"].tolist(), inputs["labels"].tolist()
            found = super().compute_loss(model, before_loss(inputs) if before_loss else inputs, *args, **kwargs)
            count = kwargs.get("num_items_in_batch")
            loss = found[0] if isinstance(found, tuple) else found
            kept.append((tokens, labels, None if count is None else float(count), float(loss.detach())))
            return found

    how = {
        "packing": True,
        "max_length": ROW,
        "per_device_train_batch_size": 2 // accumulation,
        "gradient_accumulation_steps": accumulation,
        "max_steps": STEPS,
        "optim": "sgd",
        "learning_rate": RATES[name],
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        **settings,
    }
    trainer = test_sft.trainer(build(name) if model is None else model, folder, data, Recording, **how)
    trainer.train()
    run = Run(trainer.args.learning_rate, trainer.args.max_grad_norm, trainer.accelerator.gradient_accumulation_steps)
    for begin in range(0, len(kept), accumulation):
        step = zip(*kept[begin : begin + accumulation], strict=True)
        for whole, values in zip((run.rows, run.labels, run.counts, run.losses), step, strict=True):
            whole.append(list(values))
    run.parameters = _parameters(trainer.model)
    return run


def without_boundaries(inputs: dict[str, Any]) -> dict[str, Any]:
    """The batch as if its row were one document: what a leak looks like."""
    forget()  # else a call with these tokens, or a copy of them, is known to have lost them
    rows = inputs["input_ids"]
    return {"input_ids": rows, "labels": inputs["labels"], "position_ids": torch.arange(rows.shape[1])[None]}


def _parameters(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.named_parameters()}


# ---- the loop ---------------------------------------------------------------------------------------------------


def found_in(rows: Sequence[Sequence[int]], known: Sequence[Piece]) -> list[Piece]:
    """The pieces that these rows hold, by their first tokens; asserts that they hold nothing else but padding."""
    by_first = {piece.tokens[0]: piece for piece in known}
    inside = [by_first[token] for row in rows for token in row if token in by_first]
    assert [token for piece in inside for token in piece.tokens] == [token for row in rows for token in row if token]
    return inside


def alone(name: str, changes: dict[str, Any], run: Run, weighted: bool, batches: list[list[Piece]]) -> Run:
    """The loop: steps on these pieces, each forwarded in a row of its own, and their mean loss over all predicted tokens.

    ``run``: what the optimizer is to be like. ``weighted``: each token's loss by its own probability, without a gradient, as
    dynamic fine-tuning does.
    """
    model = build(name, **changes)
    before = _parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.rate)
    for batch in batches:
        total, count = torch.zeros(()), sum(piece.predicted for piece in batch)
        for piece in (piece for piece in batch if piece.predicted):
            row = torch.tensor([piece.tokens])
            logs = model(input_ids=row, use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]
            losses = -logs * logs.detach().exp() if weighted else -logs
            total = total + losses[torch.tensor(piece.trained[1:])].sum()
        loss = total / count
        optimizer.zero_grad()
        (loss / run.divisor).backward()
        if run.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        optimizer.step()
        run.losses.append([loss.item()])
    run.parameters = _parameters(model)
    moved = max(float(np.abs(run.parameters[each] - before[each]).max()) for each in before)
    assert moved > MOVED, f"no parameter moved by more than {moved}, so nothing is shown"
    return run


class Elsewhere:
    """A process where nothing is patched, for what patched code is held against."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, mp_context=context)
        self.pool.submit(int)  # its imports take a while

    def alone(
        self, name: str, run: Run, known: Sequence[Piece], weighted: bool = False, changes: dict[str, Any] | None = None
    ) -> Run:
        """The loop over what was in the steps of this run."""
        batches = [[piece for rows in step for piece in found_in(rows, known)] for step in run.rows]
        return self.pool.submit(alone, name, changes or {}, Run(run.rate, run.clip, run.divisor), weighted, batches).result()

    def stock(self, name: str, folder: Path, data: Any) -> Future[Run]:
        """The trainer's run as upstream made it."""
        return self.pool.submit(train, name, folder, data)


# ---- both -------------------------------------------------------------------------------------------------------


def difference(ours: Run, theirs: Run) -> tuple[float, float]:
    """The largest of a step's losses, and of an element of the parameters."""
    assert ours.parameters.keys() == theirs.parameters.keys()
    losses = (abs(sum(mine) - sum(other)) for mine, other in zip(ours.losses, theirs.losses, strict=True))
    parameters = (float(np.abs(ours.parameters[each] - theirs.parameters[each]).max()) for each in theirs.parameters)
    return max(losses), max(parameters)


def assert_equal(run: Run, theirs: Run, known: Sequence[Piece]) -> None:
    """Losses and parameters are those of the loop, labels and denominators are right, and some row held several documents."""
    losses, parameters = difference(run, theirs)
    assert losses < LOSS
    assert parameters < PARAMETERS
    assert len(run.rows) == STEPS
    assert_counted(run, known)
    assert max(len(found_in([row], known)) for step in run.rows for rows in step for row in rows) > 2


def assert_counted(run: Run, known: Sequence[Piece]) -> None:
    """Of each piece all tokens have a label but the first and the masked ones; the denominator of a step is their number."""
    for step, labels, counts in zip(run.rows, run.labels, run.counts, strict=True):
        predicted = 0
        for rows, marked in zip(step, labels, strict=True):
            for row, found in zip(rows, marked, strict=True):
                expected = [_labels(piece) for piece in found_in([row], known)]
                assert found == [label for each in expected for label in each] + [-100] * row.count(0)
            predicted += sum(piece.predicted for piece in found_in(rows, known))
        assert counts == [predicted] * len(step)


def _labels(piece: Piece) -> list[int]:
    marks = (False, *piece.trained[1:])
    return [token if mark else -100 for token, mark in zip(piece.tokens, marks, strict=True)]
