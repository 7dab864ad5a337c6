"""Trainers that inherit `packing` from SFTTrainer and make batches of their own: padded, with one warning, on the same rows."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import datasets
import pytest
import test_sft
import torch

import patchwork
from patchwork.packing import PackingWarning

TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
SETTINGS = {"GKD": {"lmbda": 0.0}, "GOLD": {"lmbda": 0.0, "max_completion_length": 20}}


def classes(name: str) -> tuple[Any, Any]:
    for module in (f"trl.experimental.{name.lower()}", "trl"):
        try:
            found = importlib.import_module(module)
            return getattr(found, f"{name}Trainer"), getattr(found, f"{name}Config")
        except (ImportError, AttributeError):
            continue
    pytest.skip("not in this release")


def chats() -> datasets.Dataset:
    rows = [
        [{"role": "user", "content": f"what is {number}"}, {"role": "assistant", "content": "a number " * (1 + number)}]
        for number in range(6)
    ]
    return datasets.Dataset.from_dict({"messages": rows})


def losses(name: str, folder: Path, **settings: Any) -> list[float]:
    kind, config = classes(name)
    tokenizer = test_sft.byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    quiet = {"bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    size = {"max_length": 128, "max_steps": 2, "per_device_train_batch_size": 3, "learning_rate": 0.01}
    args = config(output_dir=str(folder), **quiet, **size, **SETTINGS[name], **settings)
    model, teacher = (test_sft.build("llama", vocab_size=len(tokenizer), seed=seed) for seed in (0, 1))
    torch.manual_seed(0)
    made = kind(model=model, teacher_model=teacher, args=args, train_dataset=chats(), processing_class=tokenizer)
    made.train()
    assert len(made.train_dataset) == 6
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", list(SETTINGS))
def test_packing_is_left_out_with_a_reason(name: str, patched: None, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        packed = losses(name, tmp_path, packing=True)
    told = [str(each.message) for each in caught if each.category is PackingWarning]
    assert len(told) == 1
    assert "is not SFTTrainer's own" in told[0]
    assert packed == losses(name, tmp_path, packing=False)
    patchwork.revert()
    assert packed == pytest.approx(losses(name, tmp_path, packing=False), abs=1e-4)
