"""Parts whose call says no parameters, scripted or traced by torch.jit or builtin: they break nothing, and hide no mixer."""

from __future__ import annotations

import copy
from typing import Any

import elsewhere
import families
import pytest
import tiny
import torch
import transformers
from alone import FIRST, Case, assert_alone, logits, stock
from torch import nn

from patchwork.packing import IsolationError, adopt, decide, isolate

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")
CASE = Case()


class Relu(nn.Module):
    forward = torch.relu


class Leaf(nn.Module):
    forward = len


class Method(nn.Module):
    forward = torch.Tensor.relu


class Around(nn.Module):
    """A builtin that holds a part, which it may run or not."""

    forward = torch.relu

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 3)


class Shifting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2))[..., :-1].transpose(1, 2)


class MyAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x).cumsum(1)


def scripted(module: nn.Module) -> Any:
    return torch.jit.script(module)


def traced(module: nn.Module) -> Any:
    return torch.jit.trace(module, torch.zeros(1, 4, 32))


HARMLESS = {
    "scripted": lambda: scripted(nn.SiLU()),
    "traced": lambda: traced(nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))),
    "builtin": Relu,
    "a method of tensors": Method,
    "no signature of a module's": Leaf,
}
HIDDEN = {
    "a scripted convolution": (lambda: scripted(Shifting()), r"conv \(Conv1d\)"),
    "a traced convolution": (lambda: traced(nn.Conv1d(4, 4, 3)), r"\(Conv1d\)"),
    "a frozen lstm": (lambda: torch.jit.freeze(scripted(nn.LSTM(32, 32)).eval()), r"\(LSTM\)"),
    "traced attention inside": (lambda: traced(nn.Sequential(nn.SiLU(), MyAttention())), r"\.1 \(MyAttention\)"),
    "scripted attention": (lambda: scripted(MyAttention()), r"\(MyAttention\)"),
    "a builtin around a part": (Around, r"\(Around\)"),
}


class Config(transformers.PretrainedConfig):
    model_type = "of_nobody"


class OfNobody(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config: Config, part: nn.Module) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(tiny.VOCABULARY, 32)
        self.part = part
        self.post_init()

    def forward(self, input_ids: Any = None, **_: Any) -> Any:
        return self.wte(input_ids)


@pytest.mark.parametrize("kind", [*HARMLESS, *HIDDEN])
def test_a_model_that_holds_one_is_built_and_refuses_packed_rows(kind: str, patched: None) -> None:
    part = HARMLESS[kind]() if kind in HARMLESS else HIDDEN[kind][0]()
    model = OfNobody(Config(), part)
    assert torch.equal(model(input_ids=CASE.tokens), model.wte(CASE.tokens))
    with pytest.raises(IsolationError, match="3 documents reached OfNobody"):
        model(input_ids=CASE.tokens, **CASE.form())
    assert "OfNobody" in decide(model).reasons[0]
    with pytest.raises(IsolationError, match="OfNobody"):
        isolate(model)


@pytest.mark.parametrize("config", [False, True], ids=["alone", "with a config"])
@pytest.mark.parametrize("kind", HARMLESS)
def test_one_that_mixes_nothing_leaves_a_known_family_known(kind: str, config: bool) -> None:
    model = copy.deepcopy(stock(FIRST))
    part = HARMLESS[kind]()
    if config and not isinstance(part, torch.jit.ScriptModule):
        part.config = model.config
    model.model.layers[0].extra = part
    assert decide(model).packing
    isolate(model)
    assert_alone(model, gradients=False, **CASE.form())


@pytest.mark.parametrize("kind", HIDDEN)
def test_one_that_may_mix_is_refused_by_name_in_a_known_family(kind: str) -> None:
    make, name = HIDDEN[kind]
    model = copy.deepcopy(stock(FIRST))
    model.model.layers[3].mlp.extra = make()
    refused = rf"layers\.3\.mlp\.extra.*{name}"
    with pytest.raises(IsolationError, match=refused):
        isolate(model)
    adopt(model.model)
    with pytest.raises(IsolationError, match=refused):
        logits(model, CASE.tokens, **CASE.form())
    assert torch.equal(logits(model, CASE.tokens), logits(stock(FIRST), CASE.tokens))


@pytest.mark.parametrize("kind", [*HARMLESS, *HIDDEN])
def test_code_that_came_with_a_checkpoint_is_refused_by_the_part(kind: str, tmp_path: Any) -> None:
    part = HARMLESS[kind]() if kind in HARMLESS else HIDDEN[kind][0]()
    code = elsewhere.module("lfm2", tmp_path)
    model = code.OtherForCausalLM(families.build("lfm2").config)
    model.base_model.layers[0].extra = part
    with pytest.raises(IsolationError, match=r"layers\.0\.extra"):
        isolate(model)
    adopt(model.base_model)
    case = Case("lfm2")
    with pytest.raises(IsolationError, match=r"layers\.0\.extra"):
        model(input_ids=case.tokens, **case.form("full"))


def test_a_trainer_takes_such_a_model(patched: None, tmp_path: Any) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    for kind in HARMLESS:
        transformers.Trainer(OfNobody(Config(), HARMLESS[kind]()), args=arguments)
