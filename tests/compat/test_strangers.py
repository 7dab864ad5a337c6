"""Parts that mix tokens and are none of the family's, beside the backbone or put into it later: packed rows are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny
import torch
import transformers
from torch import nn

from patchwork.packing import IsolationError, decide

WIDTH = 64


class Mixing(nn.GRU):
    """Carries state along the row, and takes and gives one tensor."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, batch_first=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(hidden)[0]


class Own(transformers.LlamaForCausalLM):
    """A class of the user's: its recurrence stands beside the backbone, and is built after that."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.recurrence = Mixing()

    def forward(self, input_ids: Any = None, position_ids: Any = None, inputs_embeds: Any = None, **rest: Any) -> Any:
        embedded = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return super().forward(inputs_embeds=embedded + self.recurrence(embedded), position_ids=position_ids, **rest)


def own() -> Any:
    config = tiny.build("llama").config
    assert config.hidden_size == WIDTH
    return Own(config)


def in_layer(model: Any) -> None:
    model.model.layers[0].mlp = Mixing()


def in_norm(model: Any) -> None:
    model.model.norm = Mixing()


def in_embedding(model: Any) -> None:
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens, Mixing())


def in_head(model: Any) -> None:
    model.lm_head = nn.Sequential(Mixing(), model.lm_head)


SWAPS = {"mlp": in_layer, "norm": in_norm, "embed_tokens": in_embedding, "lm_head": in_head}


def call(model: Any, packed: bool = True) -> torch.Tensor:
    ids = torch.arange(5, 17)[None]
    places = torch.tensor([[*range(5), *range(7)]]) if packed else None
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, position_ids=places).logits
    return logits


def refused(model: Any, name: str) -> None:
    assert call(model, packed=False).shape[1] == 12
    with pytest.raises(IsolationError, match=name):
        call(model)
    decision = decide(model)
    assert not decision.packing
    assert name in decision.reasons[0]


def test_beside_the_backbone_of_a_class_of_ones_own(patched_once: None) -> None:
    refused(own(), "recurrence")


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", list(SWAPS))
def test_put_in_later(name: str, compiled: bool, patched_once: None) -> None:
    model = tiny.build("llama")
    run: Callable[..., Any] = torch.compile(model, backend="eager") if compiled else model
    call(run)  # a packed call has been made
    SWAPS[name](model)
    with pytest.raises(IsolationError, match=name):
        call(run)
    refused(model, name)


def test_parts_that_work_on_each_token_alone_are_no_strangers(patched_once: None) -> None:
    model: Any = tiny.build("llama")
    model.lm_head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), model.lm_head)
    model.score = nn.Linear(WIDTH, 1)
    model.model.norm = nn.LayerNorm(WIDTH)
    assert decide(model).packing
    call(model)
