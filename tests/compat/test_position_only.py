"""Trainers that say where documents begin by positions alone, or have a model that is none: exact, refused, or left alone."""

from __future__ import annotations

import copy
import importlib
from types import ModuleType
from typing import Any

import alone
import numpy
import pytest
import tiny
import torch
import transformers
from alone import DENSE, Case

import patchwork
from patchwork.packing import IsolationError, decide
from patchwork.packing.decision import adopt_model

LENGTHS = (7, 5, 9)
NAMES = [name for name in (DENSE, "lfm2", "llama") if tiny.has(name)]


def experimental(name: str) -> ModuleType:
    """A trainer's module, if this release has it and what it imports is installed."""
    try:
        return importlib.import_module(f"trl.experimental.{name}.{name}_trainer")
    except ImportError as error:
        pytest.skip(f"{name} cannot be imported here: {error}")


def rollouts(documents: list[torch.Tensor]) -> list[dict[str, Any]]:
    """What a worker of TRL hands over for each document."""
    return [
        {
            "input_ids": document[0].numpy(),
            "completion_mask": numpy.ones(document.shape[1], dtype=numpy.int64),
            "old_log_probs": numpy.zeros(document.shape[1], dtype=numpy.float32),
            "teacher_topk_ids": numpy.zeros((document.shape[1], 2), dtype=numpy.int64),
            "teacher_topk_logprobs": numpy.zeros((document.shape[1], 2), dtype=numpy.float32),
            "advantage": 1.0,
            "metrics": {},
            "prompt_id": number,
            "group_id": number,
        }
        for number, document in enumerate(documents)
    ]


def distilled(documents: list[torch.Tensor], rows: int = 1) -> dict[str, Any]:
    module = experimental("async_distillation")
    samples = rollouts(documents)
    collator = module.DataCollatorForRollout(0, num_processes=rows)
    groups = [samples[: len(samples) - rows + 1], *([each] for each in samples[len(samples) - rows + 1 :])]
    try:
        batch: dict[str, Any] = collator([groups])
    except ValueError:  # before rows were planned ahead
        batch = collator(samples)
    return batch


def own_row(batch: dict[str, Any], row: int) -> dict[str, torch.Tensor]:
    """What `compute_loss` makes of one process's row: its padding is stripped."""
    kept = batch["attention_mask"][row].bool()
    return {name: batch[name][row][kept][None] for name in ("input_ids", "position_ids")}


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_async_distillation_are_exact(name: str) -> None:
    case = Case(name, (LENGTHS,))
    arguments = own_row(distilled(case.documents), 0)
    tokens = arguments.pop("input_ids")
    assert tokens.tolist() == case.tokens.tolist()
    alone.assert_alone(
        alone.isolated(name), case, alone.backbone if hasattr(alone.stock(name), "model") else alone.logits, **arguments
    )


@pytest.mark.parametrize("name", NAMES)
def test_padding_between_processes_is_a_tail(name: str) -> None:
    """Unstripped, and without its mask too: padding has positions 0."""
    case = Case(name, ((7, 5), (9,)))
    batch = distilled(case.documents, rows=2)
    assert batch["input_ids"].shape == (2, 12)
    expected = alone.reference(case)
    for mask in ({}, {"attention_mask": batch["attention_mask"]}):
        logits = alone.logits(alone.isolated(name), batch["input_ids"], position_ids=batch["position_ids"], **mask)
        for ours, theirs in zip(case.split(logits), expected[0], strict=True):
            alone.assert_close(ours, theirs, expected.limits[0])


def row_of_a_tree() -> dict[str, Any]:
    packing = pytest.importorskip("trl.experimental.async_grpo.packing")
    row = packing.TreeRow()
    stem, first, second = ([*range(5, 11)], [20, 21, 22], [30, 31])
    for number, end in enumerate((first, second)):
        ids = torch.tensor([*stem, *end])
        ones = torch.ones(len(ids))
        row.add({"input_ids": ids, "completion_mask": ones.long(), "old_log_probs": ones, "advantage": 1.0, "group_id": number})
    packed = row.pack()
    places = packed["position_ids"]
    assert (places.diff() != 1).any(), "a tree that does not branch shows nothing"
    tree = {key: packed[key] for key in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    tree |= dict(zip(("tree_max_seqlen_q", "tree_max_seqlen_k"), packed["tree_max_seqlens"].tolist(), strict=True))
    return {"input_ids": packed["input_ids"][None], "position_ids": places[None], **tree}


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_trees_are_not_taken_for_documents(name: str) -> None:
    """A branch goes on with the positions of its stem: isolated from it, it would lose its context."""
    row = row_of_a_tree()
    with pytest.raises(IsolationError):
        alone.isolated(name)(use_cache=False, **row)


def test_attention_over_trees_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a model without recurrence; TRL refuses the others itself."""
    row = row_of_a_tree()
    told: list[Any] = []

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
        told.append(kwargs["tree_kv_index"])
        assert "cu_seq_lens_q" not in kwargs
        return query.transpose(1, 2), None

    monkeypatch.setitem(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS._global_mapping, "tree_fa3", attention)
    model = copy.deepcopy(alone.isolated("llama"))
    model.config._attn_implementation = "tree_fa3"
    model(use_cache=False, **row)
    assert all(each is row["tree_kv_index"] for each in told)
    assert len(told) == model.config.num_hidden_layers


class Engine:
    """An engine of inference: no module, and whatever it is asked for it has not."""

    def __init__(self) -> None:
        self.touched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.touched.append(name)
        raise AttributeError(name)


def test_an_engine_that_is_no_model_is_left_alone() -> None:
    engine = Engine()
    before = dict(vars(engine))
    adopt_model(engine)
    assert vars(engine) == before
    assert not decide(engine).packing


def test_a_trainer_whose_model_holds_an_engine_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Unsloth hangs its engine on the model: it is no submodule, so nothing of it is looked at."""
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path))
    patchwork.apply()
    try:
        model = tiny.build(DENSE)
        engine = Engine()
        model.vllm_engine = engine  # type: ignore[assignment]
        adopt_model(model)
        case = Case(DENSE)
        alone.assert_equal(alone.run(model, case, **case.form("positions")), alone.reference(case))
        assert model.vllm_engine is engine
        assert engine.touched == []
    finally:
        patchwork.revert()
