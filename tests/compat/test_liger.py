"""Under `use_liger_kernel=True`, with a double of Liger, packed steps are those of the documents alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trl
from doubles import liger
from packaging.version import Version
from steps import HYBRID, LEAKS, Elsewhere, assert_equal, dataset, difference, found_in, pieces, train, without_boundaries

TRL = Version(trl.__version__)
FUSED = Version("1.15") <= TRL  # TRL's own head then, and Liger for the rest
LENGTHS = (7, 5, 9, 1, 30, 22, 2, 32, 17, 14, 3, 12, 8, 6, 20, 11)
DOCUMENTS = pieces(LENGTHS)
MASKED = pieces(LENGTHS, lambda number, place: (number + place) % 3 > 0)


@pytest.mark.parametrize("hands_on", [True, False], ids=["all arguments", "positions alone"])
@pytest.mark.parametrize("name", [HYBRID, "llama"])
def test_packed_steps_are_those_of_the_documents_alone(
    name: str, hands_on: bool, patched_once: None, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = liger.install(monkeypatch, hands_on)
    data = dataset([[piece] for piece in DOCUMENTS])
    settings: dict[str, Any] = {"use_liger_kernel": True, "gradient_checkpointing": True, "accumulation": 2}
    run = train(name, tmp_path, data, **settings)
    theirs = elsewhere.alone(name, run, DOCUMENTS)
    assert_equal(run, theirs, DOCUMENTS)
    if FUSED:
        assert asked == [{"fused_linear_cross_entropy": False}]
        return
    assert len([each for each in asked if "position_ids" in each]) == 6
    if hands_on:
        assert all("seq_idx" in each for each in asked[1:])
    leaking = train(name, tmp_path, data, before_loss=without_boundaries, **settings)
    assert min(difference(leaking, theirs)) > LEAKS, "the control does not leak, so nothing was shown"


def test_labels_of_a_tokenized_dataset_are_kept_when_it_is_packed(
    patched_once: None, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    liger.install(monkeypatch)
    run = train("llama", tmp_path, dataset([[piece] for piece in MASKED], "labels"), use_liger_kernel=True)
    assert_equal(run, elsewhere.alone("llama", run, MASKED), MASKED)


def test_labels_of_a_tokenized_dataset_are_kept_when_it_is_not(
    patched_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 1.7 a list of columns that is kept for Liger has no labels."""
    liger.install(monkeypatch)
    run = train("llama", tmp_path, dataset([[piece] for piece in MASKED], "labels"), packing=False, use_liger_kernel=True)
    rows, marked = ([row for step in each for batch in step for row in batch] for each in (run.rows, run.labels))
    for row, labels in zip(rows, marked, strict=True):
        (piece,) = found_in([row], MASKED)
        expected = [token if mark else -100 for token, mark in zip(piece.tokens, piece.trained, strict=True)]
        assert labels == expected + [-100] * row.count(0)
