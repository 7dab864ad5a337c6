"""TRL's SFTTrainer with packing, through `patchwork.apply()`: the loss is that of the documents alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
import trl
from packaging.version import Version
from tiny import build, recurrent_names
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import patchwork

LENGTHS = (7, 5, 9, 1, 30, 22, 2, 40, 17, 64)
ROW = 64


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    patchwork.apply()
    yield
    patchwork.revert()


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def token_lists() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(5, 90, (length,), generator=generator).tolist() for length in LENGTHS]


def build_without_router_loss(name: str) -> torch.nn.Module:
    """The router's auxiliary loss of a packed row is not the mean over its documents, and newer trainers add it by themselves."""
    return build(name, **({"router_aux_loss_coef": 0.0} if "moe" in name or "next" in name else {}))


def trainer(
    model: torch.nn.Module, folder: Path, dataset: Any = None, kind: type[trl.SFTTrainer] = trl.SFTTrainer, **settings: Any
) -> trl.SFTTrainer:
    """A trainer in float32 on the CPU, quiet, on the documents of LENGTHS unless others are given."""
    arguments = trl.SFTConfig(
        output_dir=str(folder),
        max_length=ROW,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    documents = dataset or datasets.Dataset.from_dict({"input_ids": token_lists()})
    evaluation = {"eval_dataset": documents} if settings.get("eval_packing") is not None else {}
    return kind(model=model, args=arguments, train_dataset=documents, processing_class=byte_tokenizer(), **evaluation)


def first_loss(model: torch.nn.Module, folder: Path, *, checkpointing: bool, dataset: Any = None, **settings: Any) -> float:
    """The loss of the trainer's first step, exactly as it leaves `compute_loss`; one batch holds all documents."""
    losses: list[float] = []

    class Recording(trl.SFTTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            losses.append(float(loss.detach()))
            return loss

    how = {"packing": True, "per_device_train_batch_size": len(LENGTHS), "max_steps": 1, **settings}
    trainer(model, folder, dataset, Recording, gradient_checkpointing=checkpointing, **how).train()
    return losses[0]


def loss_of_documents(model: torch.nn.Module) -> float:
    """Mean over all predicted tokens, each document forwarded alone."""
    total, count = 0.0, 0
    with torch.no_grad():
        for tokens in token_lists():
            if len(tokens) > 1:
                row = torch.tensor([tokens])
                logits = model(input_ids=row, use_cache=False).logits[0, :-1].double()
                total += float(torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum"))
                count += len(tokens) - 1
    return total / count


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("name", [name for name in recurrent_names() if name != "qwen3_5_vlm"])
def test_the_first_packed_loss_is_that_of_the_documents_alone(
    name: str, checkpointing: bool, patched: None, tmp_path: Path
) -> None:
    model = build_without_router_loss(name)
    expected = loss_of_documents(model)
    loss = first_loss(model, tmp_path, checkpointing=checkpointing)
    assert loss == pytest.approx(expected, abs=1e-5)


def test_padding_the_packed_row_does_not_move_the_loss(patched: None, tmp_path: Path) -> None:
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model)
    loss = first_loss(model, tmp_path, checkpointing=False, pad_to_multiple_of=64)
    assert loss == pytest.approx(expected, abs=1e-5)


def test_stock_packing_leaks_or_raises(tmp_path: Path) -> None:
    """The control: without patchwork the same call is wrong, or refuses without kernels."""
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model)
    if Version(trl.__version__) >= Version("1.16"):
        with pytest.raises(ValueError, match="packed sequences apart"):
            first_loss(model, tmp_path, checkpointing=False)
    else:
        assert abs(first_loss(model, tmp_path, checkpointing=False) - expected) > 1e-3


def test_the_collator_says_where_documents_begin(patched: None) -> None:
    collator = trl.trainer.sft_trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True, pad_to_multiple_of=8)
    examples = [{"input_ids": [5, 6, 7, 8, 9], "seq_lengths": [3, 2]}, {"input_ids": [3], "seq_lengths": [1]}]
    if Version(trl.__version__) >= Version("1.7"):
        examples = [{**example, "labels": example["input_ids"]} for example in examples]
    batch = collator(examples)
    # From 1.16 on, each padding token is a document of its own; before, all of them are one tail.
    tail = [3, 4] if Version(trl.__version__) >= Version("1.16") else [3, 3]
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2, *tail]]
    assert batch["seq_idx"].dtype == torch.int32
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, -100]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"packing": True, "packing_strategy": "wrapped"}, "packing_strategy='wrapped' cuts documents"),
        ({"packing": False, "eval_packing": True}, "packing=False and eval_packing=True"),
    ],
    ids=["wrapped", "evaluation only"],
)
def test_packed_rows_that_cannot_say_where_documents_begin_are_refused_before_the_first_step(
    settings: dict[str, Any], message: str, patched: None, tmp_path: Path
) -> None:
    with pytest.raises(patchwork.packing.PackingRefused, match=message):
        trainer(build_without_router_loss(recurrent_names()[0]), tmp_path, **settings)


def test_a_dataset_that_is_packed_already_is_refused(patched: None, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [list(range(5, 26))], "seq_lengths": [[7, 5, 9]]})
    for settings, message in (
        ({"packing": True}, "the dataset is packed already"),
        ({"packing": False}, "its documents are forgotten"),
    ):
        with pytest.raises(patchwork.packing.PackingRefused, match=message):
            trainer(build_without_router_loss(recurrent_names()[0]), tmp_path, rows, **settings)


def test_a_model_built_before_apply_is_isolated_when_the_trainer_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model)
    patchwork.apply()
    try:
        assert first_loss(model, tmp_path, checkpointing=False) == pytest.approx(expected, abs=1e-5)
    finally:
        patchwork.revert()


def test_a_stream_of_documents_packs_exactly(patched: None, tmp_path: Path) -> None:
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model)
    stream = datasets.Dataset.from_dict({"input_ids": token_lists()}).to_iterable_dataset()
    assert first_loss(model, tmp_path, checkpointing=False, dataset=stream) == pytest.approx(expected, abs=1e-5)


_SCRIPT = """
{first}
{second}
import torch, transformers
from test_sft import build_without_router_loss, first_loss, loss_of_documents
from pathlib import Path
model = build_without_router_loss({name!r})
expected = loss_of_documents(model)
print(abs(first_loss(model, Path({folder!r}), checkpointing=True) - expected) < 1e-5)
"""


@pytest.mark.parametrize("late", [False, True], ids=["apply first", "import first"])
def test_apply_works_before_and_after_the_imports(late: bool, tmp_path: Path) -> None:
    imports, applied = "from trl import SFTConfig, SFTTrainer", "import patchwork; patchwork.apply()"
    first, second = (imports, applied) if late else (applied, imports)
    script = _SCRIPT.format(first=first, second=second, name=recurrent_names()[0], folder=str(tmp_path))
    root = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{script}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr[-2000:]
