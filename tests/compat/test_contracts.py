"""What the patched public functions return, and in which form: as in stock, unless a comment here says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trl
from contracts import (
    chunks_trained,
    collated,
    flattened,
    loss_of_dpo,
    loss_of_sft,
    losses_of_chunks,
    of_one_document,
    packed,
    prepared,
    signatures,
)
from packaging.version import Version
from test_sft import trainer
from tiny import build

import patchwork
from patchwork.packing import IsolationError

VERSION = Version(trl.__version__)
SPLITTING = ["bfd_split"] if Version("1.0") <= VERSION else ["bfd-requeue"] if Version("0.29") <= VERSION else []
STRATEGIES = ["bfd", "wrapped", *SPLITTING]

# ---- trl.pack_dataset -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["rows", "one column", "a slice", "tensors", "some columns", "two datasets", "a stream"])
def test_pack_dataset_returns_what_it_returns_in_stock(kind: str, strategy: str, patched_once: None, elsewhere: Any) -> None:
    if kind == "some columns" and Version("1.0") > VERSION:
        pytest.skip("this release drops the format of its rows")
    if (kind, strategy) == ("a slice", "wrapped") and Version("1.0") <= VERSION < Version("1.14"):
        pytest.skip("this release loses tokens of a slice")
    theirs = elsewhere.pool.submit(packed, kind, strategy).result()
    assert packed(kind, strategy) == theirs
    assert ("seq_lengths" in str(theirs)) == (strategy != "wrapped")


@pytest.mark.parametrize("unused", [True, False], ids=["unused columns dropped", "kept"])
def test_a_plain_trainer_takes_wrapped_rows_as_in_stock(unused: bool, patched_once: None, elsewhere: Any, tmp_path: Path) -> None:
    theirs = elsewhere.pool.submit(losses_of_chunks, tmp_path, "wrapped", unused).result()
    assert losses_of_chunks(tmp_path, "wrapped", unused) == theirs


def test_rows_of_one_document_may_have_their_length(patched_once: None, elsewhere: Any, tmp_path: Path) -> None:
    """The Trainer drops the column, and nothing is lost by it; of two documents a row would be."""
    theirs = elsewhere.pool.submit(chunks_trained, tmp_path, of_one_document(), True).result()
    assert chunks_trained(tmp_path, of_one_document(), True) == theirs
    several = of_one_document().map(lambda row: {"seq_lengths": [1, 2]})
    with pytest.raises(IsolationError, match="the dataset is packed"):
        chunks_trained(tmp_path, several, True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_sft_trainer_asks_for_the_boundaries_of_each_strategy(strategy: str, patched_once: None, tmp_path: Path) -> None:
    made = trainer(build("llama"), tmp_path, packing=True, packing_strategy=strategy)
    for row in made.train_dataset:
        assert sum(row["seq_lengths"]) == len(row["input_ids"])
    assert max(len(row["seq_lengths"]) for row in made.train_dataset) > 1


# ---- the collator of SFTTrainer ---------------------------------------------------------------------------------

EXAMPLES = {
    "tokens": [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}],
    "labels": [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}],
    "masks": [{"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1]}, {"input_ids": [8, 9], "completion_mask": [0, 1]}],
    "one length each": [{"input_ids": [5, 6, 7], "seq_lengths": [3]}, {"input_ids": [8, 9], "seq_lengths": [2]}],
    "positions": [{"input_ids": [5, 6, 7], "position_ids": [0, 1, 2]}, {"input_ids": [8, 9], "position_ids": [0, 1]}],
    "one example": [{"input_ids": [5, 6, 7]}],
}
SETTINGS = [{}, {"pad_to_multiple_of": 8}, {"return_position_ids": True}, {"return_position_ids": True, "pad_to_multiple_of": 4}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_collator_that_pads_returns_what_it_returns_in_stock(
    kind: str, settings: dict[str, Any], patched_once: None, elsewhere: Any
) -> None:
    theirs = elsewhere.pool.submit(collated, EXAMPLES[kind], padding_free=False, **settings).result()
    assert collated(EXAMPLES[kind], padding_free=False, **settings) == theirs


@pytest.mark.parametrize(
    "columns",
    [{"seq_lengths": [2, 1]}, {"position_ids": [0, 1, 0]}, {"seq_idx": [0, 0, 1]}, {"packed_seq_lengths": [1, 2]}],
    ids=str,
)
def test_a_collator_that_pads_refuses_rows_of_several_documents(columns: dict[str, Any], patched_once: None) -> None:
    examples = [{"input_ids": [5, 6, 7], **columns}, {"input_ids": [8, 9]}]
    with pytest.raises(IsolationError, match="padding_free=False makes one document of each row"):
        collated(examples, padding_free=False)
    if "seq_lengths" in columns:
        _, batch = collated([{**each, "seq_lengths": each.get("seq_lengths", [2])} for each in examples], padding_free=True)
        assert batch["position_ids"][-1] == [[0, 1, 0, 0, 1]]


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=str)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_padding_free_collator_returns_what_it_returns_in_stock_and_the_boundaries(
    kind: str, settings: dict[str, Any], patched_once: None, elsewhere: Any
) -> None:
    """The keys of its own are the boundaries, which TRL gives since 1.16, and where there is padding a mask of it. Padding is
    one document; in stock each token of it is one. A mask of ones, which TRL gave before 0.23.1, is left out: it says that
    nothing is padding, and that the row is one document."""
    _, theirs = elsewhere.pool.submit(collated, EXAMPLES[kind], padding_free=True, **settings).result()
    _, ours = collated(EXAMPLES[kind], padding_free=True, **settings)
    boundaries = {"position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
    assert boundaries <= ours.keys() <= boundaries | {"input_ids", "labels", *(["attention_mask"] if settings else [])}
    assert theirs.keys() - {"attention_mask"} <= ours.keys()
    assert ours["input_ids"] == theirs["input_ids"]
    assert ours["labels"][:3] == theirs["labels"][:3]
    for name in theirs.keys() & boundaries:
        assert type(ours[name]) is type(theirs[name])
        assert ours[name] == theirs[name] if not settings else ours[name][0] == theirs[name][0]


# ---- the trainers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"packing": False},
        {"packing": False, "max_length": 16},
        {"packing": False, "eval_packing": True},
        {"packing": True, "packing_strategy": "bfd"},
        {"packing": True, "eval_packing": False, "packing_strategy": "bfd"},
    ],
    ids=str,
)
def test_an_sft_trainer_prepares_what_it_prepares_in_stock(
    settings: dict[str, Any], patched_once: None, elsewhere: Any, tmp_path: Path
) -> None:
    theirs = elsewhere.pool.submit(prepared, tmp_path, **settings).result()
    ours = prepared(tmp_path, **settings)
    if settings["packing"] and "max_length" in theirs[1]:
        assert theirs[1]["max_length"] is None  # TRL 1.0 to 1.7 does not cut rows for evaluation that are not packed
        theirs[1]["max_length"] = ours[1]["max_length"]
    assert ours == theirs


def test_wrapped_rows_of_an_sft_trainer_are_those_of_stock_and_their_lengths(
    patched_once: None, elsewhere: Any, tmp_path: Path
) -> None:
    """They are flattened, with their boundaries, so the collator is padding-free."""
    settings = {"packing": True, "packing_strategy": "wrapped", "max_length": 64}
    theirs = elsewhere.pool.submit(prepared, tmp_path, **settings).result()
    ours = prepared(tmp_path, **settings)
    assert ours[0] == theirs[0]
    assert ours[1]["padding_free"]
    for mine, other in zip(ours[2], theirs[2], strict=True):
        assert mine[1][0] == [*other[1][0], "seq_lengths"]
        assert [row[1]["input_ids"] for row in mine[3]] == [row[1]["input_ids"] for row in other[3]]


def test_a_padded_loss_of_sft_is_that_of_stock_to_the_bit(patched_once: None, elsewhere: Any, tmp_path: Path) -> None:
    assert loss_of_sft(tmp_path) == elsewhere.pool.submit(loss_of_sft, tmp_path).result()


def test_a_padded_loss_of_dpo_is_that_of_stock_to_the_bit(patched_once: None, elsewhere: Any, tmp_path: Path) -> None:
    try:
        theirs = elsewhere.pool.submit(loss_of_dpo, tmp_path).result()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"this TRL's DPOTrainer cannot be imported here: {error}")
    assert loss_of_dpo(tmp_path) == theirs


# ---- transformers' flattening collator --------------------------------------------------------------------------

FEATURES = {
    "tokens": [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}],
    "labels": [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}],
    "other columns": [{"input_ids": [5, 6, 7], "text": "a", "weight": 0.5}, {"input_ids": [8, 9], "text": "b", "weight": 1.0}],
    "masks": [{"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]}, {"input_ids": [8, 9], "attention_mask": [1, 1]}],
    "one feature": [{"input_ids": [5, 6, 7]}],
}


@pytest.mark.parametrize("call", [{}, {"return_tensors": "np"}, {"separator_id": -7}], ids=str)
@pytest.mark.parametrize(
    "settings",
    [{}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}, {"return_position_ids": False, "return_seq_idx": True}],
    ids=str,
)
@pytest.mark.parametrize("kind", FEATURES)
def test_a_flattened_batch_is_that_of_stock(
    kind: str, settings: dict[str, Any], call: dict[str, Any], patched_once: None, elsewhere: Any
) -> None:
    theirs = elsewhere.pool.submit(flattened, FEATURES[kind], call, settings).result()
    assert flattened(FEATURES[kind], call, settings) == theirs


def test_a_single_document_is_flattened_without_any_marks_as_in_stock(patched_once: None, elsewhere: Any) -> None:
    """Of several, nothing would say where they begin, so they are refused."""
    settings = {"return_position_ids": False}
    theirs = elsewhere.pool.submit(flattened, FEATURES["one feature"], {}, settings).result()
    assert flattened(FEATURES["one feature"], {}, settings) == theirs
    with pytest.raises(IsolationError, match="say nothing of where they begin"):
        flattened(FEATURES["tokens"], {}, settings)


# ---- signatures -------------------------------------------------------------------------------------------------


def test_signatures_are_those_of_stock(patched_once: None, elsewhere: Any) -> None:
    """One parameter is added, by keyword, with which a trainer asks for `seq_lengths`."""
    theirs = elsewhere.pool.submit(signatures).result()
    theirs["pack_dataset"] += ", _patchwork_seq_lengths"
    assert signatures() == theirs
    assert patchwork.status().outcomes
