"""What losses are divided by, and what replaces a model's forward: never zero, and never the boundaries' end."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import steps
import test_sft
import tiny
import torch
import transformers
import trl
from packaging.version import Version
from steps import MODELS, dataset, pieces, train

from patchwork.packing import decide, isolate
from patchwork.packing.trainers.collators import boundary_arguments

TRL = Version(trl.__version__)
LENGTHS = (7, 5, 9, 1, 30, 22, 2, 32, 17, 14)
LOSSES = [None, *["dft"] * (Version("0.23") <= TRL), *["chunked_nll"] * (Version("1.4") <= TRL < Version("1.7"))]
LOSSES += ["nll"] * (Version("1.7") <= TRL < Version("1.15"))


def names() -> list[str]:
    """Of all test models that can be packed in this release."""
    every = dict.fromkeys([*tiny.recurrent_names(), *MODELS, *tiny.ATTENTION])
    return [name for name in every if decide(build(name)).packing]


def build(name: str) -> torch.nn.Module:
    return steps.build(name) if name in MODELS else tiny.build(name)


def signatures(model: torch.nn.Module) -> dict[str, inspect.Signature]:
    """Of what trainers may ask: the model and its backbones."""
    parts = {path: part for path, part in model.named_modules() if isinstance(part, transformers.PreTrainedModel)}
    return {path: inspect.signature(part.forward) for path, part in parts.items()}


NAMES = names()


@pytest.fixture(scope="module")
def stock_signatures() -> dict[str, dict[str, inspect.Signature]]:
    return {name: signatures(build(name)) for name in NAMES}


@pytest.fixture(scope="module", autouse=True)
def signatures_read_before_patches(stock_signatures: Any, patched_once: None) -> None:
    """In that order."""


def one_loss(loss: str | None) -> dict[str, Any]:
    return {} if loss is None else {"loss_type": loss}


# ---- nothing to predict -----------------------------------------------------------------------------------------


def no_labels(lengths: tuple[int, ...] = LENGTHS) -> datasets.Dataset:
    return dataset([[piece] for piece in pieces(lengths, lambda number, place: False)], "completion_mask")


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padding-free"])
@pytest.mark.parametrize("loss", LOSSES)
def test_steps_without_a_label_have_loss_zero_and_change_nothing(loss: str | None, packing: bool, tmp_path: Path) -> None:
    settings = {"packing": packing, "padding_free": not packing}
    if not packing and Version("1.0") <= TRL:
        settings["max_length"] = None
    data = no_labels()
    if not packing and Version("1.9") <= TRL:  # which drops such documents, where each is a row
        data = dataset([[piece] for piece in pieces((1,) * 8)])
    run = train("llama", tmp_path, data, completion_only_loss=True, **one_loss(loss), **settings)
    assert [sum(losses) for losses in run.losses] == [0.0] * steps.STEPS
    before = dict(steps.build("llama").named_parameters())
    for name, value in run.parameters.items():
        assert np.array_equal(value, before[name].detach().numpy()), name


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("loss", LOSSES)
def test_evaluation_without_a_label_is_zero(loss: str | None, packed: bool, tmp_path: Path) -> None:
    data = dataset([[piece] for piece in pieces(LENGTHS)])
    nothing = no_labels() if packed else dataset([[piece] for piece in pieces((1,) * 4)])
    trainer = test_sft.trainer(
        steps.build("llama"),
        tmp_path,
        data,
        evaluation=nothing,
        packing=True,
        eval_packing=packed,
        completion_only_loss=packed,
        max_length=steps.ROW,
        per_device_eval_batch_size=2,
        **one_loss(loss),
    )
    assert trainer.evaluate()["eval_loss"] == 0.0


def test_a_loss_without_a_denominator_is_zero_too(tmp_path: Path) -> None:
    """As where upstream computes one by itself. The label of a row's first token does not count: nothing predicts it."""
    trainer = test_sft.trainer(steps.build("llama"), tmp_path, dataset([[piece] for piece in pieces(LENGTHS)]))
    row = torch.tensor([[5, 6, 7]])
    for labels in (torch.full_like(row, -100), torch.tensor([[5, -100, -100]])):
        inputs = {"input_ids": row, "labels": labels, "attention_mask": torch.ones_like(row)}
        assert trainer.compute_loss(trainer.model, inputs).item() == 0.0


# ---- the router's loss ------------------------------------------------------------------------------------------


def router_loss(model: torch.nn.Module, total: int, *, masked: bool = True) -> float:
    """Of documents of 7, 5 and 9 tokens, in a row of this length, told as TRL's collator does."""
    parts = tiny.documents((7, 5, 9))
    row = torch.nn.functional.pad(torch.cat(parts, dim=1), (0, total - 21))
    told = boundary_arguments([{"seq_lengths": [7, 5, 9]}], row)
    if not masked:
        del told["attention_mask"]
    return model(input_ids=row, use_cache=False, output_router_logits=True, **told).aux_loss.item()


def test_the_routers_loss_leaves_out_the_tail() -> None:
    """With routers that prefer some experts: else every tail is spread evenly, and its loss is that of the documents."""
    model = build("qwen3_next")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter.mul_(20)
    expected = router_loss(model, 21)
    assert router_loss(model, 60) == pytest.approx(expected, abs=1e-5)
    assert abs(router_loss(model, 60, masked=False) - expected) > 1e-2


# ---- a model's forward ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_forward_stays_a_method_with_the_signature_that_it_had(name: str, stock_signatures: Any) -> None:
    """TRL 1.8 to 1.14 takes its `__func__`; trainers read from its signature which columns and counts it takes."""
    isolate(model := build(name))
    assert signatures(model) == stock_signatures[name]
    for module in model.modules():
        assert inspect.ismethod(module.forward)
        assert module.forward.__func__


@pytest.mark.parametrize("name", NAMES)
def test_a_trainer_is_made_of_each_model_and_its_forward_is_a_method(name: str, tmp_path: Path) -> None:
    trainer = test_sft.trainer(build(name), tmp_path, dataset([[piece] for piece in pieces(LENGTHS)]), packing=True)
    assert inspect.ismethod(trainer.model.forward)
    assert "labels" in inspect.signature(trainer.model.forward).parameters
