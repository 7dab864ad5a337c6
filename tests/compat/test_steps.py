"""Three optimizer steps of SFT with packing are three steps on the same documents alone: in losses, and in parameters."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
import steps
import test_sft
import trl
from packaging.version import Version
from steps import HYBRID, LEAKS, MODELS, Elsewhere, Piece, assert_equal, cut, dataset, difference, pieces, train

TRL = Version(trl.__version__)
LENGTHS = (7, 5, 9, 1, 30, 22, 2, 32, 17, 14, 3, 12, 8, 6, 20, 11)
LONG = (41, 9, 70, 5, 1, 33, 12, 28)
DOCUMENTS = pieces(LENGTHS)
MASKED = pieces(LENGTHS, lambda number, place: place >= 2 if number % 3 else (place + number) % 3 > 0)
DATA = dataset([[piece] for piece in DOCUMENTS])
# Those that this release has; its default goes without a name. From 1.15 on both are computed by the fused head.
LOSSES = ["dft"] * (Version("0.23") <= TRL) + ["chunked_nll"] * (Version("1.4") <= TRL < Version("1.7"))
LOSSES += ["nll"] * (Version("1.7") <= TRL < Version("1.15"))
SPLITTING = ["bfd_split"] if Version("1.0") <= TRL else ["bfd-requeue"] if Version("0.29") <= TRL else []


@pytest.mark.parametrize("name", MODELS)
def test_packed_steps_are_those_of_the_documents_alone(
    name: str, patched_once: None, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    run = train(name, tmp_path, DATA)
    theirs = elsewhere.alone(name, run, DOCUMENTS)
    assert_equal(run, theirs, DOCUMENTS)
    leaking = train(name, tmp_path, DATA, before_loss=steps.without_boundaries)
    assert leaking.rows == run.rows
    assert min(difference(leaking, theirs)) > LEAKS, "the control does not leak, so nothing was shown"


@pytest.mark.parametrize("name", [HYBRID, "lfm2"])
def test_stock_packing_leaks_or_raises(name: str, elsewhere: Elsewhere, tmp_path: Path) -> None:
    stock = elsewhere.stock(name, tmp_path, DATA)
    if isinstance(error := stock.exception(), ValueError):
        assert "packed sequences apart" in str(error)
    else:
        assert max(difference(stock.result(), elsewhere.alone(name, stock.result(), DOCUMENTS))) > LEAKS


@pytest.mark.parametrize("name", MODELS)
def test_with_gradient_checkpointing_and_clipping_as_the_trainer_has_them(
    name: str, patched_once: None, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    run = train(name, tmp_path, DATA, gradient_checkpointing=True, max_grad_norm=1.0, learning_rate=0.4)
    assert_equal(run, elsewhere.alone(name, run, DOCUMENTS), DOCUMENTS)


def test_with_gradients_of_two_batches(patched_once: None, elsewhere: Elsewhere, tmp_path: Path) -> None:
    run = train(HYBRID, tmp_path, DATA, accumulation=2)
    assert len(run.losses[0]) == 2
    assert_equal(run, elsewhere.alone(HYBRID, run, DOCUMENTS), DOCUMENTS)


@pytest.mark.parametrize("column", ["completion_mask", "assistant_masks", "labels"])
def test_masked_tokens_are_neither_trained_on_nor_counted(
    column: str, patched_once: None, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    settings = {"completion_only_loss": True} if column == "completion_mask" else {}
    run = train(HYBRID, tmp_path, dataset([[piece] for piece in MASKED], column), accumulation=2, **settings)
    assert_equal(run, elsewhere.alone(HYBRID, run, MASKED), MASKED)


@pytest.mark.parametrize("loss", LOSSES or [pytest.param("", marks=pytest.mark.skip("TRL before 0.23 has one loss"))])
def test_each_loss_of_this_release(loss: str, patched_once: None, elsewhere: Elsewhere, tmp_path: Path) -> None:
    settings = {"loss_type": loss, "completion_only_loss": True, "learning_rate": 1.0 if loss == "dft" else 0.01}
    run = train(HYBRID, tmp_path, dataset([[piece] for piece in MASKED], "completion_mask"), accumulation=2, **settings)
    assert_equal(run, elsewhere.alone(HYBRID, run, MASKED, weighted=loss == "dft"), MASKED)


def test_prompts_and_completions_as_text(patched_once: None, elsewhere: Elsewhere, tmp_path: Path) -> None:
    """The trainer tokenizes them itself, into bytes, and adds the end."""
    tokenizer, changes = test_sft.byte_tokenizer(), {"vocab_size": 264}
    texts = [(chr(ord("A") + number), "bcd"[: number % 4], "xyzw"[: number % 3 + 1] * (number % 5 + 1)) for number in range(24)]
    rows = [{"prompt": first + prompt, "completion": completion} for first, prompt, completion in texts]
    known = []
    for row in rows:
        prompt, whole = tokenizer(row["prompt"])["input_ids"], tokenizer(row["prompt"] + row["completion"])["input_ids"]
        whole = [*whole, tokenizer.eos_token_id]
        known.append(Piece(tuple(whole), tuple(place >= len(prompt) for place in range(len(whole)))))
    data = datasets.Dataset.from_list(rows)
    run = train(HYBRID, tmp_path, data, model=steps.build(HYBRID, **changes), learning_rate=0.003)
    assert_equal(run, elsewhere.alone(HYBRID, run, known, changes=changes), known)


@pytest.mark.parametrize("strategy", ["wrapped", *SPLITTING])
def test_pieces_of_long_documents_count_as_documents(
    strategy: str, patched_once: None, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    lengths = cut(LONG, strategy)
    each = iter(known := pieces([length for document in lengths for length in document]))
    data = dataset([[next(each) for _ in document] for document in lengths])
    run = train(HYBRID, tmp_path, data, packing_strategy=strategy)
    assert_equal(run, elsewhere.alone(HYBRID, run, known), known)


def test_with_padding_behind_the_documents(patched_once: None, elsewhere: Elsewhere, tmp_path: Path) -> None:
    run = train(HYBRID, tmp_path, DATA, pad_to_multiple_of=48)
    assert {len(row) % 48 for step in run.rows for row in step[0]} == {0}
    assert any(row[-1] == 0 for step in run.rows for row in step[0])
    assert_equal(run, elsewhere.alone(HYBRID, run, DOCUMENTS), DOCUMENTS)


def test_without_packing_but_padding_free(patched_once: None, elsewhere: Elsewhere, tmp_path: Path) -> None:
    settings = {"packing": False, "padding_free": True, "max_length": None if Version("1.0") <= TRL else steps.ROW}
    run = train(HYBRID, tmp_path, DATA, per_device_train_batch_size=4, **settings)
    assert_equal(run, elsewhere.alone(HYBRID, run, DOCUMENTS), DOCUMENTS)
