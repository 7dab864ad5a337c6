"""What one row of a dataset says of its documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from patchwork.packing.errors import IsolationError
from patchwork.packing.trainers.dataset_rows import documents_of

IDS = list(range(10, 16))


@pytest.mark.parametrize(
    ("columns", "lengths"),
    [
        ({"seq_lengths": [4, 2]}, [4, 2]),
        ({"seq_lengths": [6]}, [6]),
        ({"packed_seq_lengths": [4, 2]}, [4, 2]),
        ({"seq_idx": [0, 0, 0, 0, 1, 1]}, [4, 2]),
        ({"position_ids": [0, 1, 2, 3, 0, 1]}, [4, 2]),
        ({"position_ids": [0, 0, 1, 2, 3, 4]}, [1, 5]),  # nothing falls
        ({"position_ids": [0, 1, 0, 1, 0, 0], "attention_mask": [1, 1, 1, 1, 0, 0]}, [2, 2, 2]),  # the last two are padding
        ({"position_ids": [0, 1, 2, 0, 0, 0]}, [3, 1, 1, 1]),  # it may be padding; nothing says so
    ],
)
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_every_column_that_says_it(columns, lengths, kind):
    assert documents_of({"input_ids": kind(IDS), **{name: kind(values) for name, values in columns.items()}}) == lengths


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"seq_lengths": 6},
        {"seq_lengths": None},
        {"position_ids": [0, 1, 2, 3, 4, 5]},
        {"position_ids": [3, 4, 5, 6, 7, 8]},
        {"position_ids": [1, 1, 1, 0, 1, 2]},
        {"position_ids": [0, 0, 0, 1, 2, 3], "attention_mask": [0, 0, 1, 1, 1, 1]},
        {"position_ids": [0, 1, 2, 0, 0, 0], "attention_mask": [1, 1, 1, 0, 0, 0]},
        {"position_ids": [[0, 1, 2, 3, 0, 1]] * 3},
        {"seq_idx": [0] * 6},
        {"packed_seq_lengths": [6]},
    ],
)
def test_rows_of_one_document_and_columns_of_another_matter_say_nothing(columns):
    assert documents_of({"input_ids": IDS, **columns}) is None


def test_columns_that_contradict_each_other_raise():
    with pytest.raises(IsolationError, match="contradict"):
        documents_of({"input_ids": IDS, "seq_idx": [0, 0, 0, 1, 1, 1], "position_ids": [0, 1, 0, 1, 2, 3]})
