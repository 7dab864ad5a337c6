"""Examples of a batch that is to be flattened, and the boundaries of what becomes of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from patchwork.packing.errors import BoundariesError, IsolationError
from patchwork.packing.trainers.collators import boundary_arguments, flattening, flattens_packed_rows

FLAT = SimpleNamespace(padding_free=True)
PADDED = SimpleNamespace(padding_free=False)


def lengths(examples):
    return [example["seq_lengths"] for example in examples]


def test_a_padded_batch_is_left_alone():
    examples = [{"input_ids": [1, 2]}, {"input_ids": []}]
    collator, same = flattening(PADDED, examples)
    assert collator is PADDED
    assert same is examples


def test_one_packed_example_makes_the_batch_of_the_trainers_own_collator_flat():
    own = SimpleNamespace(padding_free=False)
    flattens_packed_rows(own)
    collator, examples = flattening(own, [{"input_ids": [1, 2, 3], "seq_lengths": [2, 1]}])
    assert collator.padding_free
    assert not own.padding_free
    assert lengths(examples) == [[2, 1]]


@pytest.mark.parametrize(
    "columns",
    [
        {"seq_lengths": [2, 1]},
        {"seq_lengths": np.array([2, 1])},
        {"position_ids": [0, 1, 0]},
        {"seq_idx": [0, 0, 1]},
        {"packed_seq_lengths": [2, 1]},
    ],
    ids=["seq_lengths", "array", "position_ids", "seq_idx", "packed_seq_lengths"],
)
def test_a_collator_that_keeps_padding_refuses_rows_of_several_documents(columns):
    [name] = columns
    examples = [{"input_ids": [4]}, {"input_ids": [1, 2, 3], **columns}]
    with pytest.raises(IsolationError, match=rf"example 1 holds several documents \(by its {name}\).*padding_free=True"):
        flattening(PADDED, examples)


@pytest.mark.parametrize(
    "columns",
    [
        {"seq_lengths": [3]},
        {"seq_lengths": [0, 3, 0]},
        {"seq_lengths": None},
        {"seq_lengths": []},
        {"position_ids": [0, 1, 2]},
        {"position_ids": [5, 6, 7]},
        {"seq_idx": [0, 0, 0]},
    ],
    ids=str,
)
def test_a_collator_that_keeps_padding_keeps_rows_of_one_document(columns):
    examples = [{"input_ids": [1, 2, 3], **columns}]
    collator, same = flattening(PADDED, examples)
    assert collator is PADDED
    assert same is examples


def test_examples_that_disagree_on_seq_lengths_keep_theirs():
    _, examples = flattening(
        FLAT, [{"input_ids": [1, 2]}, {"input_ids": [3, 4, 5], "seq_lengths": [1, 2]}, {"input_ids": [6], "seq_lengths": None}]
    )
    assert lengths(examples) == [[2], [1, 2], [1]]


def test_empty_documents_and_examples_leave_no_trace():
    _, examples = flattening(
        FLAT, [{"input_ids": []}, {"input_ids": [1, 2, 3], "seq_lengths": [0, 2, 0, 1]}, {"input_ids": [], "seq_lengths": [0]}]
    )
    assert lengths(examples) == [[2, 1]]
    assert boundary_arguments(examples, torch.zeros(1, 3))["cu_seq_lens_q"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list], ids=["numpy", "torch", "list"])
def test_arrays_and_tensors_are_lists(kind):
    _, examples = flattening(FLAT, [{"input_ids": kind([1, 2, 3]), "labels": kind([1, 2, 3]), "seq_lengths": kind([1, 2])}])
    assert examples == [{"input_ids": [1, 2, 3], "labels": [1, 2, 3], "seq_lengths": [1, 2]}]


@pytest.mark.parametrize(("mode", "kept"), [("keep_start", [1, 2]), ("keep_end", [2, 3])])
def test_a_single_document_is_truncated_where_the_collator_does(mode, kept):
    collator = SimpleNamespace(padding_free=True, max_length=2, truncation_mode=mode)
    _, examples = flattening(
        collator,
        [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [7, 8, 9], "labels": [7, 8, 9], "seq_lengths": [1, 2]}],
    )
    assert examples[0] == {"input_ids": kept, "labels": kept, "seq_lengths": [2]}
    assert examples[1]["seq_lengths"] == [1, 2]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([{"input_ids": [1, 2], "seq_lengths": [1]}], "sum to 1, but it has 2 tokens"),
        ([{"input_ids": [1, 2], "seq_lengths": [3, -1]}], r"\[3, -1\]"),
        ([{"input_ids": [1, 2], "labels": [1]}], "2 input_ids and 1 labels"),
        ([{"input_ids": [1, 2], "completion_mask": [1, 0]}, {"input_ids": [1]}], "example 1 has no completion_mask"),
        ([{"input_ids": []}, {"input_ids": []}], "none of the 2 examples"),
    ],
)
def test_what_cannot_be_right_raises(examples, message):
    with pytest.raises(BoundariesError, match=message):
        flattening(FLAT, examples)


def test_padding_is_one_tail():
    made = boundary_arguments([{"seq_lengths": [3, 2]}], torch.zeros(1, 8))
    assert made["cu_seq_lens_q"].tolist() == [0, 3, 5, 8]
    assert made["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 2, 2, 2]]
    assert made["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    assert "attention_mask" not in boundary_arguments([{"seq_lengths": [3, 2]}], torch.zeros(1, 5))
    assert (made["max_length_q"], made["seq_idx"].dtype, made["cu_seq_lens_k"].dtype) == (3, torch.int32, torch.int32)


def test_documents_longer_than_the_row_raise():
    with pytest.raises(BoundariesError, match="more than the 4 tokens"):
        boundary_arguments([{"seq_lengths": [3, 2]}], torch.zeros(1, 4))
