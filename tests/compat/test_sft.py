"""TRL's SFTTrainer with packing, through `patchwork.apply()`: the loss is that of the documents alone."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
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
    model: torch.nn.Module,
    folder: Path,
    dataset: Any = None,
    kind: type[trl.SFTTrainer] = trl.SFTTrainer,
    evaluation: Any = None,
    **settings: Any,
) -> trl.SFTTrainer:
    """A trainer in float32 on the CPU, quiet, on the documents of LENGTHS unless others are given."""
    quiet = {"bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    arguments = trl.SFTConfig(output_dir=str(folder), **{"max_length": ROW, **quiet, **settings})
    documents = datasets.Dataset.from_dict({"input_ids": token_lists()}) if dataset is None else dataset
    return kind(model=model, args=arguments, train_dataset=documents, eval_dataset=evaluation, processing_class=byte_tokenizer())


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


def loss_of_documents(model: torch.nn.Module, documents: list[list[int]] | None = None) -> float:
    """Mean over all predicted tokens, each document forwarded alone."""
    total, count = 0.0, 0
    with torch.no_grad():
        for tokens in token_lists() if documents is None else documents:
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


def pieces_of_a_stream() -> list[list[int]]:
    """The documents as `wrapped` packing cuts them: at their ends and at every ROW tokens of all."""
    stream = [(token, number) for number, tokens in enumerate(token_lists()) for token in tokens]
    rows = [stream[start : start + ROW] for start in range(0, len(stream), ROW)]
    return [[token for token, _ in piece] for row in rows for _, piece in itertools.groupby(row, key=lambda entry: entry[1])]


def pieces_of_long_documents() -> list[list[int]]:
    return [tokens[start : start + 32] for tokens in token_lists() for start in range(0, len(tokens), 32)]


@pytest.mark.parametrize("name", [recurrent_names()[0], "llama"])
def test_wrapped_packing_keeps_the_pieces_of_documents_apart(name: str, patched: None, tmp_path: Path) -> None:
    model = build_without_router_loss(name)
    expected = loss_of_documents(model, pieces_of_a_stream())
    assert len(pieces_of_a_stream()) > len(LENGTHS)
    assert abs(expected - loss_of_documents(model)) > 1e-3
    loss = first_loss(model, tmp_path, checkpointing=False, packing_strategy="wrapped")
    assert loss == pytest.approx(expected, abs=1e-5)


def test_documents_that_are_split_count_as_several(patched: None, tmp_path: Path) -> None:
    version = Version(trl.__version__)
    if version < Version("0.27"):
        pytest.skip("this release does not split documents")
    strategy = "bfd" if version < Version("0.29") else "bfd-requeue" if version < Version("1.0") else "bfd_split"
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model, pieces_of_long_documents())
    loss = first_loss(model, tmp_path, checkpointing=False, packing_strategy=strategy, max_length=32)
    assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"packing": False, "eval_packing": True},
        {"packing": True, "eval_packing": False},
        {"packing": True, "eval_packing": None},
    ],
    ids=["packed for evaluation only", "packed for training only", "packed"],
)
def test_evaluation_is_that_of_the_documents_however_they_are_packed(
    settings: dict[str, Any], patched: None, tmp_path: Path
) -> None:
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model)
    documents = datasets.Dataset.from_dict({"input_ids": token_lists()})
    made = trainer(model, tmp_path, per_device_eval_batch_size=len(LENGTHS), evaluation=documents, **settings)
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)
    assert made.evaluate(documents)["eval_loss"] == pytest.approx(expected, abs=1e-5) if late_datasets() else True


def late_datasets() -> bool:
    """Whether `evaluate` prepares what it is given."""
    return Version(trl.__version__) >= Version("1.7")


def test_rows_for_evaluation_are_truncated_as_without_packing(patched: None, tmp_path: Path) -> None:
    """Not compared with padded batches: transformers before 5.10 counts their first tokens in the denominator."""
    model = build_without_router_loss(recurrent_names()[0])
    documents = datasets.Dataset.from_dict({"input_ids": token_lists()})
    sizes = {"max_length": 32, "per_device_eval_batch_size": len(LENGTHS)}
    made = trainer(model, tmp_path, evaluation=documents, packing=True, eval_packing=False, **sizes)
    expected = loss_of_documents(model, [tokens[:32] for tokens in token_lists()])
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-5)


def packed_rows(**columns: Any) -> datasets.Dataset:
    documents = token_lists()
    rows = {"input_ids": [list(itertools.chain(*documents[:5])), list(itertools.chain(*documents[5:]))]}
    return datasets.Dataset.from_dict({**rows, **columns})


@pytest.mark.parametrize("packing", [True, False])
def test_a_dataset_that_is_packed_already_keeps_its_boundaries(packing: bool, patched: None, tmp_path: Path) -> None:
    model = build_without_router_loss(recurrent_names()[0])
    rows = packed_rows(seq_lengths=[list(LENGTHS[:5]), list(LENGTHS[5:])])
    expected = loss_of_documents(model)
    loss = first_loss(model, tmp_path, checkpointing=False, dataset=rows, packing=packing, max_length=256)
    assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("name", ["position_ids", "seq_idx"])
def test_rows_that_say_otherwise_that_they_are_packed_are_refused(
    name: str, stream: bool, packing: bool, patched: None, tmp_path: Path
) -> None:
    places = [
        [place if name == "position_ids" else number for number, length in enumerate(part) for place in range(length)]
        for part in (LENGTHS[:5], LENGTHS[5:])
    ]
    rows = packed_rows(**{name: places})
    with pytest.raises(patchwork.packing.PackingRefused, match=f"several documents, by their {name}"):
        trainer(build("llama"), tmp_path, rows.to_iterable_dataset() if stream else rows, packing=packing, max_steps=1)


def test_positions_and_numbers_of_single_documents_are_dropped_like_any_column(patched: None, tmp_path: Path) -> None:
    documents = token_lists()
    columns = {"position_ids": [list(range(len(each))) for each in documents], "seq_idx": [[0] * len(each) for each in documents]}
    rows = datasets.Dataset.from_dict({"input_ids": documents, **columns})
    model = build("llama")
    expected = loss_of_documents(model)
    assert first_loss(model, tmp_path, checkpointing=False, dataset=rows) == pytest.approx(expected, abs=1e-5)


def test_what_a_trainer_packed_may_be_given_to_it_again(patched: None, tmp_path: Path) -> None:
    """TRL prepares the datasets of a dict twice, and those that it prepared before."""
    model = build_without_router_loss(recurrent_names()[0])
    expected = loss_of_documents(model)
    documents = datasets.Dataset.from_dict({"input_ids": token_lists()})
    made = trainer(model, tmp_path, evaluation=documents, packing=True, per_device_eval_batch_size=len(LENGTHS))
    assert made.evaluate(made.eval_dataset)["eval_loss"] == pytest.approx(expected, abs=1e-5)
    if late_datasets():
        assert made.evaluate({"a": documents})["eval_a_loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_a_second_trainer_packs_the_same_model(bf16: bool, patched: None, tmp_path: Path) -> None:
    """The first one may have given its head another forward."""
    model = build_without_router_loss(recurrent_names()[0])
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", patchwork.packing.PackingWarning)
            made = trainer(model, tmp_path, packing=True, max_steps=1, bf16=bf16, per_device_train_batch_size=10)
        assert "seq_lengths" in made.train_dataset.column_names
        made.train()


class Forgetful(trl.SFTTrainer):
    """Hands on a part of the batch."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        outputs = model(input_ids=inputs["input_ids"], labels=inputs["labels"])
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def test_a_loss_of_ones_own_that_forgets_boundaries_raises(patched: None, tmp_path: Path) -> None:
    made = trainer(build("llama"), tmp_path, kind=Forgetful, packing=True, max_steps=1, gradient_checkpointing=False)
    with pytest.raises(patchwork.packing.IsolationError, match="documents and says so"):
        made.train()
    apart = trainer(build("llama"), tmp_path, kind=Forgetful, packing=False, max_steps=1, gradient_checkpointing=False)
    apart.train()


def test_a_collator_put_in_afterwards_that_forgets_boundaries_raises(patched: None, tmp_path: Path) -> None:
    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.tensor(examples[0]["input_ids"])[None]
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}

    made = trainer(build("llama"), tmp_path, packing=True, max_steps=1, per_device_train_batch_size=1)
    made.data_collator = collate
    for run in (made.train, lambda: made.evaluate(made.train_dataset)):
        with pytest.raises(patchwork.packing.IsolationError, match=r"documents .by their seq_lengths., but collate says nothing"):
            run()


def test_rows_of_one_document_may_be_predicted_where_others_are_packed(patched: None, tmp_path: Path) -> None:
    documents = datasets.Dataset.from_dict({"input_ids": token_lists(), "labels": token_lists()})
    made = trainer(build("llama"), tmp_path, evaluation=documents, packing=False, eval_packing=True)
    assert "seq_lengths" in made.eval_dataset.column_names
    assert made.predict(documents).metrics["test_loss"] > 0


def test_labels_of_a_tokenized_dataset_are_packed_too(patched: None, tmp_path: Path) -> None:
    labels = [[-100] * (len(tokens) // 2) + tokens[len(tokens) // 2 :] for tokens in token_lists()]
    dataset = datasets.Dataset.from_dict({"input_ids": token_lists(), "labels": labels})
    made = trainer(build("llama"), tmp_path, dataset, packing=True)
    packed = made.train_dataset
    assert "labels" in packed.column_names
    assert sum(label != -100 for row in packed["labels"] for label in row) == sum(
        label != -100 for document in labels for label in document
    )


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
