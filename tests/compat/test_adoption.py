"""Every way a model gets into a trainer: a packed batch that reaches it is exact, or raises before the loss.

The models here are restored, as they are when they were built before `patchwork.apply()`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import tiny
import torch
import transformers
from alone import DENSE
from test_flattening import LENGTHS, alone, build, features
from transformers import DataCollatorWithFlattening

from patchwork.packing import IsolationError, restore
from patchwork.packing.isolation import isolated
from patchwork.packing.trainers import model_adoption as adoption

pytestmark = pytest.mark.usefixtures("patched_once")


def built_before(name: str = DENSE) -> torch.nn.Module:
    model = build(name)
    restore(model)
    assert not isolated(model)
    return model


def trainer(folder: Path, kind: Any = transformers.Trainer, **given: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=len(LENGTHS),
        per_device_eval_batch_size=len(LENGTHS),
        max_steps=1,
        learning_rate=0.0,
        logging_steps=1,
        **{"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True},
        **given.pop("settings", {}),
    )
    data = datasets.Dataset.from_list(features())
    collator = given.pop("data_collator", None) or DataCollatorWithFlattening()
    return kind(args=arguments, train_dataset=data, eval_dataset=data, data_collator=collator, **given)


def first_loss(made: Any) -> float:
    made.train()
    return float(next(entry["loss"] for entry in made.state.log_history if "loss" in entry))


@pytest.fixture(scope="module")
def expected() -> float:
    """The loss of the documents alone, which the row without boundaries is far from."""
    model, data = built_before(), features()
    loss = alone(model, data)[0]
    row = torch.tensor([[token for each in data for token in each["input_ids"]]])
    starts = torch.tensor([0, *LENGTHS]).cumsum(0)[:-1]
    leaking = model(input_ids=row, labels=row.index_fill(1, starts, -100), use_cache=False).loss
    assert abs(float(leaking.detach()) - loss) > 1e-2, "the control does not leak"
    return loss


def given(folder: Path) -> Any:
    return trainer(folder, model=built_before())


def from_model_init(folder: Path) -> Any:
    model = built_before()
    return trainer(folder, model_init=lambda: model)


def from_a_copying_model_init(folder: Path) -> Any:
    base = built_before()
    return trainer(folder, model_init=lambda: copy.deepcopy(base))


def for_a_trial(folder: Path) -> Any:
    """As each trial of a hyperparameter search gets its model."""
    base = built_before()
    made = trainer(folder, model_init=lambda trial: copy.deepcopy(base))
    made.model = made.model_wrapped = made.call_model_init(object())
    made.model_init = None
    return made


def set_later(folder: Path) -> Any:
    made = trainer(folder, model=build(DENSE))
    made.model = made.model_wrapped = built_before()
    return made


def set_by_a_callback(folder: Path) -> Any:
    other = built_before()

    class Exchanging(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            restore(made.model)

    made = trainer(folder, model=other, callbacks=[Exchanging()])
    return made


def compiled(folder: Path) -> Any:
    model = torch.compile(built_before(), backend="eager")
    return trainer(folder, model=model, settings={"remove_unused_columns": False})  # stock, too, sees no signature of it


def in_a_module_of_ones_own(folder: Path) -> Any:
    class Around(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any = None, position_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
            return self.inner(input_ids=input_ids, position_ids=position_ids, labels=labels, **kwargs)

    return trainer(folder, model=Around(built_before()))


def called_by_a_loss(folder: Path) -> Any:
    """A model that the trainer keeps by a name of its own."""

    class Student(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return self.other(**inputs).loss + 0 * sum(each.sum() for each in model.parameters())

    made = trainer(folder, Student, model=build(DENSE))
    made.other = built_before()
    return made


def adapted(folder: Path) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")  # adds nothing at first
    return trainer(folder, model=peft.get_peft_model(built_before(), config))


WAYS = (
    *(given, from_model_init, from_a_copying_model_init, for_a_trial, set_later, set_by_a_callback, in_a_module_of_ones_own),
    *(called_by_a_loss, adapted),
)


@pytest.mark.parametrize("way", [*WAYS, pytest.param(compiled, marks=pytest.mark.slow)], ids=lambda way: way.__name__)
def test_a_packed_batch_is_exact(way: Callable[[Path], Any], expected: float, tmp_path: Path) -> None:
    assert first_loss(way(tmp_path)) == pytest.approx(expected, abs=1e-4)
    torch._dynamo.reset()


def test_evaluation_is_exact_too(expected: float, tmp_path: Path) -> None:
    made = trainer(tmp_path, model=build(DENSE))
    made.model = made.model_wrapped = built_before()
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("later", [True, False], ids=["set later", "from model_init"])
def test_a_model_that_cannot_be_packed_raises_before_the_loss(later: bool, tmp_path: Path) -> None:
    config = transformers.BloomConfig(n_layer=1, hidden_size=32, n_head=2, vocab_size=tiny.VOCABULARY)
    other = transformers.BloomForCausalLM(config)
    restore(other)
    # Its forward takes no position_ids, so all that a batch may say goes by other names.
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    how = {"data_collator": collator, "settings": {"remove_unused_columns": False}}
    made = trainer(tmp_path, model=build("llama"), **how) if later else trainer(tmp_path, model_init=lambda: other, **how)
    if later:
        made.model = made.model_wrapped = other
    with pytest.raises(IsolationError, match="5 documents"):
        made.train()
    assert made.state.log_history == []


def test_ordinary_batches_leave_a_model_as_it_is(tmp_path: Path) -> None:
    model = built_before("llama")
    made = trainer(tmp_path, model=build("llama"))
    made.model = made.model_wrapped = model
    ids = torch.cat(tiny.documents((9,)))
    made._prepare_inputs({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids})
    assert not isolated(model)


def test_a_model_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = trainer(tmp_path, model=build("llama")), []
    original = adoption.adopt_model
    monkeypatch.setattr(adoption, "adopt_model", lambda model: (asked.append(model), original(model)))
    batch = DataCollatorWithFlattening()(features())
    for _ in range(3):
        made._prepare_inputs(dict(batch))
    assert len(asked) == 1
    restore(made.model)
    made._prepare_inputs(dict(batch))
    assert len(asked) == 2
    assert isolated(made.model)
