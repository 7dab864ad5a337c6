"""Models, datasets and arguments that have no truth value, or an unusual length or equality, train as in stock."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version
from pairs import pairs, quiet, recording, word_tokenizer
from test_dpo import other
from tiny import build, has, worst_difference

import patchwork
from patchwork.packing.isolation import restore
from patchwork.packing.runtime.markers import FLAG, UNPADS
from patchwork.packing.trainers import dpo

try:
    from trl import DPOConfig, DPOTrainer
except (ImportError, RuntimeError) as error:
    pytest.skip(f"this TRL's DPOTrainer cannot be imported here: {error}", allow_module_level=True)

NAMES = [name for name in ("llama", "lfm2") if has(name)]


def unless_asked_by_patchwork(answer: Any) -> Any:
    """A method with this answer; what upstream asks of its models is its own business."""

    def method(*_: Any) -> Any:
        asking = sys._getframe(1).f_globals["__name__"]
        if asking.partition(".")[0] == "patchwork":
            raise TypeError(f"{asking} asked a model for its truth value, length or equality")
        return answer

    return method


def compiled(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def with_methods(**methods: Any) -> Any:
    """Gives a model a subclass of its class, of the same name and with the inherited forward, that has these methods."""

    def change(model: torch.nn.Module) -> torch.nn.Module:
        kind = type(model)
        model.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})
        return model

    return change


UNEQUAL = unless_asked_by_patchwork(NotImplemented)
KINDS = {
    "compiled": compiled,
    "a length of 0": with_methods(__len__=lambda self: 0),
    "no truth value": with_methods(__bool__=unless_asked_by_patchwork(True)),
    "no length": with_methods(__len__=unless_asked_by_patchwork(1)),
    "no equality": with_methods(__eq__=UNEQUAL, __ne__=UNEQUAL, __hash__=object.__hash__),
}


def step(folder: Path, model: Any, reference: Any, **settings: Any) -> Any:
    """A trainer after one step."""
    torch.manual_seed(0)
    made = recording(DPOTrainer)(
        model=model,
        ref_model=reference,
        args=DPOConfig(**quiet(folder, gradient_checkpointing=False, beta=0.5, **settings)),
        train_dataset=Dataset.from_dict(pairs()),
        processing_class=word_tokenizer(),
    )
    made.train()
    return made


def gradients(made: Any) -> dict[str, torch.Tensor]:
    return {name.removeprefix("_orig_mod."): value for name, value in made.found.items()}


def assert_same(made: Any, expected: Any) -> None:
    assert made.loss == pytest.approx(expected.loss, abs=1e-5)
    assert worst_difference(gradients(made), gradients(expected)) < 1e-4
    assert max(float(value.abs().max()) for value in expected.found.values()) > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padding_free", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("kind", KINDS)
def test_dpo_trains_models_that_are_no_plain_objects(
    kind: str, padding_free: bool, name: str, patched_once: None, tmp_path: Path
) -> None:
    """Policy and reference. Before 0.29 TRL itself asks a reference for its truth value, so there the reference is plain."""
    expected = step(tmp_path, build(name), other(build(name)))
    reference = other(build(name)) if Version(trl.__version__) < Version("0.29") else KINDS[kind](other(build(name)))
    assert_same(step(tmp_path, KINDS[kind](build(name)), reference, padding_free=padding_free), expected)


@pytest.mark.parametrize("padding_free", [False, True], ids=["padded", "padding-free"])
def test_dpo_compiles_its_models_by_itself(padding_free: bool, patched_once: None, tmp_path: Path) -> None:
    expected = step(tmp_path, build("llama"), other(build("llama")))
    settings = {"torch_compile": True, "torch_compile_backend": "eager"}
    assert_same(step(tmp_path, build("llama"), other(build("llama")), padding_free=padding_free, **settings), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_models_built_before_apply_are_isolated(kind: str, patched_once: None) -> None:
    """Else a length of 0 would leave the model out, and its documents would leak."""
    model = build("llama").eval()
    restore(model)
    row, places = torch.arange(3, 13)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    with torch.no_grad():
        alone = torch.cat([model(input_ids=part, use_cache=False).logits for part in (row[:, :4], row[:, 4:])], 1)
        leaking = model(input_ids=row, use_cache=False).logits
        given = KINDS[kind](model)
        dpo.prepare(SimpleNamespace(), True, given, None)
        packed = given(input_ids=row, position_ids=places, use_cache=False).logits
    assert patchwork.packing.decide(given).packing
    assert any(FLAG in module.__dict__ for module in model.modules())
    assert torch.allclose(packed, alone, atol=1e-5)
    assert float((leaking - alone).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_left_out_of_each_model(kind: str, patched_once: None) -> None:
    trainer = SimpleNamespace(model=KINDS[kind](build("llama")), ref_model=KINDS[kind](build("llama")))
    dpo.prepare(trainer, True, trainer.model, trainer.ref_model)

    def switched() -> list[bool]:
        return [any(UNPADS in module.__dict__ for module in each.modules()) for each in (trainer.model, trainer.ref_model)]

    assert dpo.without_padding(trainer, switched) == [True, True]
    assert switched() == [False, False]
