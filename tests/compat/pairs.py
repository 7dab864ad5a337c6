"""Preference pairs and a tokenizer of words, for trainers that take text."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

LENGTHS = ((3, 9, 2), (5, 1, 14), (2, 4, 4), (7, 21, 3))  # words of prompt, chosen and rejected answer


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Words w3 to w59, whose ids are their numbers; 0 is the padding, 2 the end."""
    words = {"<pad>": 0, "<unk>": 1, "<eos>": 2, **{f"w{number}": number for number in range(3, 60)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>", unk_token="<unk>"
    )


def pairs() -> dict[str, list[str]]:
    """Prompts with a chosen and a rejected answer."""
    generator = torch.Generator().manual_seed(4)

    def text(length: int) -> str:
        return "".join(f" w{number}" for number in torch.randint(3, 60, (length,), generator=generator).tolist())

    rows = [[text(length) for length in lengths] for lengths in LENGTHS]
    return dict(zip(("prompt", "chosen", "rejected"), map(list, zip(*rows, strict=True)), strict=True))


def quiet(folder: Any, **settings: Any) -> dict[str, Any]:
    """Settings of a trainer that takes one step in float32 on the CPU; one batch holds all pairs."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": len(LENGTHS),
        "max_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        **settings,
    }


def recording(kind: type) -> type:
    """``kind`` that keeps the loss and the gradients of its last step, as `loss` and `found`."""

    class Recording(kind):  # type: ignore[misc]
        def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(model, *args, **kwargs)
            self.loss = float(loss)
            self.found = {
                name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
                for name, value in model.named_parameters()
                if value.requires_grad
            }
            return loss

    return Recording
