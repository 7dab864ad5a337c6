"""A double of liger_kernel, which needs Triton: its forward on models, its contract, a plain loss.

tests/test_liger_static.py reads from its wheels that the real forwards call the backbone as these do.
"""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast


@dataclass
class Output(CausalLMOutputWithPast):
    """With what TRL asks for from 0.29 on."""

    token_accuracy: torch.Tensor | None = None


def install(monkeypatch: pytest.MonkeyPatch, hands_on: bool = True) -> list[dict[str, Any]]:
    """Makes the double importable until ``monkeypatch`` is undone. Returns what will have been asked of it: the keywords of
    each model, and of each call of a forward.

    ``hands_on``: whether a forward gives the backbone all arguments, as from 0.6 on; before, position_ids alone.
    """
    asked: list[dict[str, Any]] = []
    package, inner = types.ModuleType("liger_kernel"), types.ModuleType("liger_kernel.transformers")
    package.__version__ = "0.8.5"  # type: ignore[attr-defined]

    def apply(model: Any, **keywords: Any) -> None:
        asked.append(keywords)
        if keywords.get("fused_linear_cross_entropy", True):
            model.forward = types.MethodType(_forward(asked, hands_on), model)

    inner._apply_liger_kernel_to_instance = apply  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", inner)
    for name in ("transformers.trainer", "transformers.integrations.liger"):
        if find_spec(name) is not None:
            monkeypatch.setattr(importlib.import_module(name), "is_liger_kernel_available", lambda: True, raising=False)
    return asked


def _forward(asked: list[dict[str, Any]], hands_on: bool) -> Any:
    def lce_forward(
        self: Any,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        skip_logits: bool | None = None,
        **kwargs: Any,
    ) -> Output:
        asked.append({"position_ids": position_ids, **kwargs})
        hidden = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **(kwargs if hands_on else {}),
        )[0]
        logits = self.lm_head(hidden)
        loss = accuracy = None
        if labels is not None:
            loss, accuracy = _loss(logits, labels, **kwargs)
        skip = self.training and labels is not None if skip_logits is None else skip_logits
        return Output(loss=loss, logits=None if skip else logits, token_accuracy=accuracy)

    return lce_forward


def _loss(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any = None, use_token_scaling: bool = False, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.nn.functional.pad(labels, (0, 1), value=-100)[..., 1:]
    counts = targets != -100
    logs = logits[counts].log_softmax(-1)
    chosen = logs.gather(1, targets[counts][:, None])[:, 0]
    losses = -chosen * chosen.detach().exp() if use_token_scaling else -chosen
    accuracy = (logs.argmax(-1) == targets[counts]).float().mean()
    return (losses.mean() if num_items_in_batch is None else losses.sum() / num_items_in_batch), accuracy
