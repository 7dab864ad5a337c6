"""TRL's RewardTrainer and KTOTrainer never pack nor leave padding out: patchwork changes no bit of their steps."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import trl
from datasets import Dataset
from pairs import LENGTHS, pairs, quiet, recording, word_tokenizer
from tiny import build, has

import patchwork
from patchwork.packing.isolation import isolated

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        from trl.experimental.kto import KTOConfig, KTOTrainer
    except ImportError:
        from trl import KTOConfig, KTOTrainer

SCORING = [stem for stem in ("Qwen3Next", "Llama") if hasattr(transformers, f"{stem}ForSequenceClassification")]


def scorer(stem: str) -> torch.nn.Module:
    """A model that scores a row, its weights of standard deviation 0.1."""
    config = copy.deepcopy(build({"Qwen3Next": "qwen3_next", "Llama": "llama"}[stem]).config)
    config.num_labels = 1
    torch.manual_seed(0)
    model = getattr(transformers, f"{stem}ForSequenceClassification")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    return model.train()


def rewarded(folder: Path, stem: str) -> Any:
    rows = pairs()
    answers = {kind: [prompt + answer for prompt, answer in zip(rows["prompt"], rows[kind], strict=True)] for kind in rows}
    return recording(trl.RewardTrainer)(
        model=scorer(stem),
        args=trl.RewardConfig(**quiet(folder, gradient_checkpointing=False)),
        train_dataset=Dataset.from_dict({kind: answers[kind] for kind in ("chosen", "rejected")}),
        processing_class=word_tokenizer(),
    )


def judged(folder: Path, name: str) -> Any:
    rows = pairs()
    settings = quiet(folder, gradient_checkpointing=False, per_device_train_batch_size=2 * len(LENGTHS))
    return recording(KTOTrainer)(
        model=build(name),
        ref_model=build(name),
        args=KTOConfig(**settings),
        train_dataset=Dataset.from_dict(
            {
                "prompt": rows["prompt"] * 2,
                "completion": rows["chosen"] + rows["rejected"],
                "label": [True] * len(LENGTHS) + [False] * len(LENGTHS),
            }
        ),
        processing_class=word_tokenizer(),
    )


@pytest.fixture(autouse=True, scope="module")
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATCHWORK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def check(make: Callable[[Path, str], Any], folder: Path, name: str) -> None:
    """One step without patchwork and one with it."""
    steps = []
    for apply in (False, True):
        if apply:
            patchwork.apply()
        try:
            torch.manual_seed(0)
            made = make(folder, name)
            assert isolated(made.model) is apply
            made.train()
        finally:
            if apply:
                patchwork.revert()
        steps.append((made.loss, made.found))
    (loss, gradients), (patched_loss, patched_gradients) = steps
    assert loss == patched_loss
    assert gradients.keys() == patched_gradients.keys()
    assert all(torch.equal(gradients[name], patched_gradients[name]) for name in gradients)
    assert any(bool(gradient.any()) for gradient in gradients.values())


@pytest.mark.parametrize("stem", SCORING)
def test_a_step_of_a_reward_model_is_the_same_to_the_bit(stem: str, tmp_path: Path) -> None:
    check(rewarded, tmp_path, stem)


@pytest.mark.parametrize("name", [name for name in ("qwen3_next", "lfm2", "llama") if has(name)])
def test_a_step_of_kto_is_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    check(judged, tmp_path, name)


def test_neither_has_a_switch_that_would_pack() -> None:
    """The day one gets it, this fails, and it is time to look again."""
    for config in (trl.RewardConfig, KTOConfig):
        assert not {"padding_free", "packing"}.intersection(config.__dataclass_fields__)
