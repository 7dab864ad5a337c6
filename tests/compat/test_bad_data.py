"""Data that cannot be packed as it is: TRL's own error or a clearer one, never a hang, never silence."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
import trl
from packaging.version import Version
from test_sft import byte_tokenizer, token_lists, trainer
from tiny import build

from patchwork.packing.errors import PackingWarning

VERSION = Version(trl.__version__)
TOKENS = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int64"))})


def rows(**columns: Any) -> datasets.Dataset:
    return datasets.Dataset.from_dict(columns)


def nothing() -> Any:
    return
    yield


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (lambda: rows(input_ids=[]), ValueError, "train_dataset is empty"),
        (lambda: datasets.IterableDataset.from_generator(nothing), (StopIteration, ValueError), ""),
        (lambda: datasets.Dataset.from_dict({"input_ids": [[], []]}, features=TOKENS), ValueError, "2 documents and no token"),
        (lambda: rows(input_ids=["abc", "de"]), (ValueError, TypeError), ""),
        (lambda: rows(input_ids=[[0.5, 1.5], [2.5]]), ValueError, "lists of double, not of integers"),
        (lambda: rows(input_ids=[[[5, 6]], [[7]]]), ValueError, "not of integers"),
        (lambda: rows(input_ids=[5, 6]), (ValueError, TypeError), ""),
        (lambda: rows(text=[5, 6]), (AttributeError, TypeError), ""),
        (lambda: rows(input_ids=[[5, 6, 7], [8]], labels=[[5, 6], [7, 8]]), ValueError, r"row 0 has 3 and 2 entries"),
        (None, (ValueError, TypeError), ""),
    ],
    ids=["no rows", "empty stream", "empty rows", "strings", "floats", "nested", "numbers", "text of numbers", "uneven", "none"],
)
def test_data_without_tokens_or_of_another_type_raises(
    dataset: Callable[[], Any] | None, error: Any, message: str, patched: None, tmp_path: Path
) -> None:
    if dataset is None:
        arguments = trl.SFTConfig(output_dir=str(tmp_path), packing=True, bf16=False, use_cpu=True, report_to="none")
        with pytest.raises(error):
            trl.SFTTrainer(model=build("llama"), args=arguments, train_dataset=None, processing_class=byte_tokenizer())
    else:
        with pytest.raises(error, match=message):
            trainer(build("llama"), tmp_path, dataset(), packing=True)


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [("bfd", "cut"), ("wrapped", "all"), ("bfd_split", "all"), ("bfd-requeue", "all"), ("made_up", None)],
)
def test_a_document_longer_than_a_row(strategy: str, kept: str | None, patched: None, tmp_path: Path) -> None:
    known = {"bfd", "wrapped"} | ({"bfd-requeue"} if Version("0.29") <= VERSION else set())
    known |= {"bfd_split"} if Version("1.0") <= VERSION else set()
    dataset = rows(input_ids=[list(range(5, 30))])
    settings = {"packing": True, "packing_strategy": strategy, "max_length": 8}
    if strategy not in known:
        with pytest.raises(ValueError, match=r"packing.strategy"):
            trainer(build("llama"), tmp_path, dataset, **settings)
        return
    splits = Version("0.27") <= VERSION < Version("0.29")
    if kept == "cut" and not splits:
        with pytest.warns(PackingWarning, match="1 of 1 documents to max_length=8: 25 tokens in, 8 out"):
            made = trainer(build("llama"), tmp_path, dataset, **settings)
        assert made.train_dataset["input_ids"][:] == [list(range(5, 13))]
    else:
        made = trainer(build("llama"), tmp_path, dataset, **settings)
        assert sorted(itertools.chain(*made.train_dataset["input_ids"])) == list(range(5, 30))
        assert sorted(itertools.chain(*made.train_dataset["seq_lengths"])) == [1, 8, 8, 8]


@pytest.mark.parametrize(("length", "message"), [(None, "`max_length` can't be `None`"), (0, "max_length=0")])
def test_rows_without_a_length_raise(length: int | None, message: str, patched: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(build("llama"), tmp_path, packing=True, max_length=length)


@pytest.mark.parametrize(
    ("pad", "eos", "error"),
    [(None, "<eos>", None), ("<pad>", None, None), (None, None, (ValueError, TypeError))],
    ids=["no pad", "no eos", "neither"],
)
def test_a_tokenizer_without_special_tokens(
    pad: str | None, eos: str | None, error: Any, patched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.pad_token, tokenizer.eos_token = pad, eos
    monkeypatch.setattr("test_sft.byte_tokenizer", lambda: tokenizer)
    settings = {"packing": True, "max_steps": 1, "per_device_train_batch_size": 1}
    if error is not None:
        with pytest.raises(error):
            trainer(build("llama"), tmp_path, **settings)
        return
    result = trainer(build("llama"), tmp_path, **settings).train()
    assert torch.isfinite(torch.tensor(result.training_loss))


def test_some_empty_documents_are_left_out_and_counted(patched: None, tmp_path: Path) -> None:
    documents = [[], *token_lists(), []]
    with pytest.warns(PackingWarning, match="2 of 12 documents are empty"):
        made = trainer(build("llama"), tmp_path, rows(input_ids=documents), packing=True)
    assert sorted(itertools.chain(*made.train_dataset["input_ids"])) == sorted(itertools.chain(*documents))


def test_documents_of_one_token_have_nothing_to_predict(patched: None, tmp_path: Path) -> None:
    model = build("llama")
    before = [parameter.clone() for parameter in model.parameters()]
    made = trainer(model, tmp_path, rows(input_ids=[[5], [6], [7]]), packing=True, max_steps=1, optim="sgd", learning_rate=1.0)
    assert made.train().training_loss == 0
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
def test_what_padded_rows_lose_in_place_of_packed_ones_is_counted(stream: bool, patched: None, tmp_path: Path) -> None:
    dataset = rows(input_ids=token_lists())
    given = dataset.to_iterable_dataset() if stream else dataset
    model = transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(vocab_size=300, hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global"], 2]])
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = trainer(model, tmp_path, given, packing=True, packing_strategy="wrapped", max_length=32, max_steps=1)
        for _ in made.train_dataset:
            pass
    texts = [str(each.message) for each in caught if each.category is PackingWarning]
    assert "packing is refused for GPTNeoForCausalLM" in texts[0]
    assert "cuts 2 of 10 documents to max_length=32: 197 tokens in, 157 out" in texts[-1]
