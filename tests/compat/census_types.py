"""The other process of a census, with more model types than transformers has, each with a fault of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from patchwork.commands import census_worker

Fault = Callable[[Any, bool], Any]


def _packed_only(fault: Callable[[], Any]) -> Fault:
    return lambda output, packed: fault() if packed else None


def _refuse() -> None:
    raise NotImplementedError("no packed rows here")


def _fault() -> None:
    raise TypeError("position_ids are of\nthe wrong kind")


# Called with the output and whether the row is packed. The last one ends the process, and so does the first.
FAULTS: dict[str, Fault] = {
    "dies_packed": _packed_only(lambda: os._exit(3)),
    "takes_memory": lambda output, packed: torch.zeros(5 << 30, dtype=torch.uint8),
    "refuses_packed": _packed_only(_refuse),
    "fails_packed": _packed_only(_fault),
    "not_finite": lambda output, packed: output.logits.mul_(float("nan")),
    "same_for_all": lambda output, packed: output.logits.mul_(0),
    "large": lambda output, packed: None,
    "hangs": lambda output, packed: time.sleep(600),
    "dies": lambda output, packed: os.kill(os.getpid(), 9),
}


def register(name: str, fault: Fault) -> None:
    class Config(LlamaConfig):
        model_type = name

    class Model(LlamaForCausalLM):
        config_class = Config

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            if name == "large":
                self.more = torch.nn.Linear(10_000, 7_000)

        def forward(self, input_ids: Any = None, position_ids: Any = None, **given: Any) -> Any:
            output = super().forward(input_ids=input_ids, position_ids=position_ids, **given)
            fault(output, position_ids is not None)
            return output

    AutoConfig.register(name, Config)
    AutoModelForCausalLM.register(Config, Model)
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name] = "Model"


if __name__ == "__main__":
    for name, fault in FAULTS.items():
        register(name, fault)
    census_worker.main(sys.argv[1] == "stock", int(sys.argv[2]))
