"""Compares packed rows with their documents alone, and with the same call without boundaries, which must differ.

Every comparison here runs its positive control: what it called, on the same rows, with the boundaries left out.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tiny
import torch

from patchwork.packing import Boundaries, isolate, restore

NAMES = tiny.recurrent_names()
FIRST = "qwen3_next"  # in every release
DENSE = "qwen3_5" if "qwen3_5" in NAMES else FIRST
# How far rounding may move a result: of the largest logit, and of a parameter's gradient norm. Controls have to show at least a
# hundred times as much. Where a model rounds more, by its depth or its routers, the limit is measured: `limit`.
LOGITS = 2e-5
GRADIENTS = 1e-4
ORDERS = 10  # times what moving the last bit of each weight does, of which no order of sums came to more than 2.2: tiny.nudged
MOST = 1e-3  # no limit is larger: real controls show 0.13 and more

FORMS = {
    "positions": ["position_ids"],
    "full": ["position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"],
    "cumulative": ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"],
    "seq_idx": ["seq_idx"],
    "cumulative and positions": ["position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"],
    "seq_idx and positions": ["position_ids", "seq_idx"],
}
Call = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Packed rows for one test model: lengths of the documents row by row; ``total`` is the length of a row with its tail."""

    name: str = FIRST
    rows: tuple[tuple[int, ...], ...] = ((7, 5, 9),)
    attention: str = "sdpa"
    total: int | None = None

    @property
    def boundaries(self) -> Boundaries:
        return Boundaries.from_seq_lens(self.rows, total=self.total)

    @property
    def documents(self) -> list[torch.Tensor]:
        """Token ids, one ``(1, length)`` tensor a document, row by row."""
        return tiny.documents([length for row in self.rows for length in row])

    @property
    def tokens(self) -> torch.Tensor:
        """``(B, S)``; the tails are zeros."""
        tokens = torch.zeros(len(self.rows), self.boundaries.row_length, dtype=torch.int64)
        parts = iter(self.documents)
        for target, row in zip(tokens, self.rows, strict=True):
            target[: sum(row)] = torch.cat([next(parts)[0] for _ in row])
        return tokens

    def form(self, form: str = "positions") -> dict[str, Any]:
        """The arguments that describe the documents in one of FORMS."""
        full = self.boundaries.model_kwargs()
        return {name: full[name] for name in FORMS[form]}

    def split(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The documents' parts of ``(B, S, ...)``, tails left out."""
        pairs = zip(whole.split(1), self.rows, strict=True)
        return [part for one, row in pairs for part in tiny.split(one, row)]

    @property
    def followers(self) -> list[int]:
        """Numbers of the documents that have another one before them in their row."""
        return [number for number, place in enumerate(place for row in self.rows for place in range(len(row))) if place]


# ---- models and calls -------------------------------------------------------------------------------------------


@functools.cache
def stock(name: str, attention: str = "sdpa") -> torch.nn.Module:
    model = tiny.build(name, attention)
    restore(model)  # patches may be in force while it is built
    return model


@functools.cache
def isolated(name: str, attention: str = "sdpa") -> torch.nn.Module:
    model = copy.deepcopy(stock(name, attention))
    isolate(model)
    return model


def logits(model: Any, tokens: torch.Tensor, **arguments: Any) -> torch.Tensor:
    return model(input_ids=tokens, **{"use_cache": False, **arguments}).logits


def by_position(model: Any, tokens: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
    return model(tokens, None, position_ids).logits


def embedded(model: Any, tokens: torch.Tensor, **arguments: Any) -> torch.Tensor:
    return model(inputs_embeds=model.get_input_embeddings()(tokens), use_cache=False, **arguments).logits


def backbone(model: Any, tokens: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """Hidden states of the inner model, as fused losses call it."""
    return model.model(inputs_embeds=model.get_input_embeddings()(tokens), use_cache=False, **arguments).last_hidden_state


# ---- comparisons ------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """Outputs, document by document, and gradients of tiny.loss by parameter."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    limits = (LOGITS, GRADIENTS)  # no field: how far rounding may move them, relative to their size


class Reference(Result):
    """The same of documents alone, with ``limits`` of its own."""


@functools.cache
def reference(case: Case, call: Call = logits) -> Reference:
    """What ``call`` returns for each document in a row of its own, on a stock model, and the gradients of tiny.loss."""
    return of_each(stock(case.name, case.attention), case, call)


def of_each(model: torch.nn.Module, case: Case, call: Call = logits) -> Reference:
    """The same of a model that is at hand."""

    def documents(each: torch.nn.Module) -> Result:
        return _with_gradients(each, lambda: [call(each, part) for part in case.documents])

    made = Reference(*documents(model))
    moved = errors(documents(tiny.nudged(model)), made)
    made.limits = (limit(LOGITS, moved[0]), limit(GRADIENTS, moved[1]))
    return made


def limit(usual: float, moved: float) -> float:
    """How far rounding may move a result that moves by ``moved`` with the last bits of the weights."""
    return min(MOST, max(usual, ORDERS * moved))


def run(model: torch.nn.Module, case: Case, call: Call = logits, gradients: bool = True, **arguments: Any) -> Result:
    """The same of the rows, document by document; with ``gradients=False`` there are none."""
    if gradients:
        return _with_gradients(model, lambda: case.split(call(model, case.tokens, **arguments)))
    with torch.no_grad():
        return Result(case.split(call(model, case.tokens, **arguments)), {})


def _with_gradients(model: torch.nn.Module, outputs: Callable[[], list[torch.Tensor]]) -> Result:
    kept: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        found = outputs()
        kept.extend(output.detach() for output in found)
        return tiny.loss(found)

    gradients = tiny.gradients(model, loss)
    return Result(kept, {name.replace("_checkpoint_wrapped_module.", ""): value for name, value in gradients.items()})


def errors(found: Result, expected: Result) -> tuple[float, float]:
    """The largest difference of an output, relative to the largest value of its document, and of a gradient."""
    pairs = zip(found.outputs, expected.outputs, strict=True)
    outputs = max(float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max())) for ours, theirs in pairs)
    return outputs, tiny.worst_difference(found.gradients, expected.gradients)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, within: float = LOGITS) -> None:
    """Equal but for the order of sums in float32: ``within`` that share of the largest value."""
    torch.testing.assert_close(ours, theirs, atol=within * max(1.0, float(theirs.detach().abs().max())), rtol=0)


def assert_equal(found: Result, expected: Reference) -> None:
    for ours, theirs in zip(found.outputs, expected.outputs, strict=True):
        assert_close(ours, theirs, expected.limits[0])
    if found.gradients:
        assert tiny.worst_difference(found.gradients, expected.gradients) < expected.limits[1]


def assert_leaks(found: Result, expected: Reference, case: Case) -> None:
    """Every document behind another one differs a hundred times as much as rounding may, and so do the gradients."""
    pairs = zip(found.outputs, expected.outputs, strict=True)
    leaks = [float((ours - theirs).abs().max()) for ours, theirs in pairs]
    least = max(5e2 * LOGITS, 1e2 * expected.limits[0])
    assert min(leaks[number] for number in case.followers) > least, "the control does not leak, so nothing was shown"
    if found.gradients:
        assert tiny.worst_difference(found.gradients, expected.gradients) > 1e2 * expected.limits[1]


def assert_alone(
    model: torch.nn.Module, case: Case | None = None, call: Call = logits, gradients: bool = True, **arguments: Any
) -> None:
    """The call equals the documents alone, and without its boundaries it does not.

    ``gradients=False`` where the parameters are not those of the stock model, or are not trained.
    """
    case = case or Case()
    expected = reference(case, call)
    assert_equal(run(model, case, call, gradients, **arguments), expected)
    bare = {name: value for name, value in arguments.items() if name not in FORMS["full"]}
    assert len(bare) < len(arguments), "no boundaries given"
    assert_leaks(run(model, case, call, gradients, **bare), expected, case)
