"""Public functions that are patched keep upstream's contract: the same call gives stock's columns, shapes and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import transformers
import trl
from contracts import EXAMPLES, chunked_loss, collated, flattened, packed, signatures, training_columns
from packaging.version import Version

from patchwork.packing import IsolationError

VERSION = Version(trl.__version__)
SPLITTING = {"bfd_split": "1.0", "bfd-requeue": "0.29"}
STRATEGIES = ["bfd", "wrapped", *(name for name, since in SPLITTING.items() if Version(since) <= VERSION)]
if Version("1.0") <= VERSION:
    STRATEGIES.remove("bfd-requeue")
KINDS = ("dataset", "several", "stream")


# ---- pack_dataset ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pack_dataset_returns_stocks_columns(strategy: str, kind: str, patched_once: None, elsewhere: Any) -> None:
    stock = elsewhere.pool.submit(packed, strategy, kind)
    ours, theirs = packed(strategy, kind), stock.result()
    assert ours[:2] == theirs[:2]
    assert ours[3] == theirs[3]  # a stream's types are those that it was given, or none
    if kind != "stream":
        assert ours[2] == theirs[2]


def test_rows_that_are_chunks_on_purpose_train_as_in_stock(patched_once: None, elsewhere: Any, tmp_path: Path) -> None:
    stock = elsewhere.pool.submit(chunked_loss, str(tmp_path / "stock"))
    assert chunked_loss(str(tmp_path / "ours")) == stock.result()


# ---- collators ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "several"])
def test_a_padded_batch_is_stocks(name: str, multiple: int | None, patched_once: None, elsewhere: Any) -> None:
    how = {"padding_free": False, "pad_to_multiple_of": multiple}
    assert collated(name, **how) == elsewhere.pool.submit(collated, name, **how).result()


def test_rows_of_several_documents_are_refused_in_a_padded_batch(patched_once: None) -> None:
    with pytest.raises(IsolationError, match="example 0 holds 2 documents, and a collator made with padding_free=False"):
        collated("several", padding_free=False)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_flat_batch_has_stocks_columns_and_more(name: str, patched_once: None, elsewhere: Any) -> None:
    """More by design: what describes documents. Before 0.23.1 stock's labels predict the next document, its mask is of ones."""
    ours, theirs = collated(name, padding_free=True), elsewhere.pool.submit(collated, name, padding_free=True).result()
    old = Version("0.23.1") > VERSION
    for key in theirs.keys() - ({"attention_mask", "labels", "position_ids"} if old else set()):
        assert ours[key] == theirs[key]
    assert {"input_ids", "labels", "position_ids", "seq_idx", "cu_seq_lens_q"} <= ours.keys()


@pytest.mark.parametrize("settings", [{}, {"return_flash_attn_kwargs": True}, {"return_seq_idx": True}], ids=str)
@pytest.mark.parametrize("name", ["plain", "labels"])
def test_a_flattened_batch_is_stocks(name: str, settings: dict[str, Any], patched_once: None, elsewhere: Any) -> None:
    assert flattened(name, **settings) == elsewhere.pool.submit(flattened, name, **settings).result()


# ---- all of them -------------------------------------------------------------------------------------------------


def test_signatures_are_stocks(patched_once: None, elsewhere: Any) -> None:
    tiny.build("llama")
    assert signatures() == elsewhere.pool.submit(signatures).result()


def test_columns_that_a_trainer_removes_are_stocks(patched_once: None, elsewhere: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert training_columns() == elsewhere.pool.submit(training_columns).result()


def test_the_batches_of_a_model_are_what_they_were(patched_once: None) -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.int64), "labels": torch.ones(1, 3, dtype=torch.int64)}
    arguments = transformers.TrainingArguments(output_dir="unused", report_to="none", use_cpu=True)
    made = transformers.Trainer(tiny.build("llama"), arguments)
    assert made._prepare_inputs(batch).keys() == batch.keys()
