"""Boundaries: every description of the same documents gives the same value, and a wrong one is refused by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from patchwork.packing.boundaries import Boundaries  # noqa: E402
from patchwork.packing.errors import BoundariesError  # noqa: E402


def test_lengths_with_a_tail_number_the_tail_in_seq_idx():
    made = Boundaries.from_seq_lens([5, 2, 4], total=16)
    assert made.seq_idx.tolist() == [[0] * 5 + [1] * 2 + [2] * 4 + [3] * 5]
    assert made.seq_idx.dtype == torch.int32
    assert made.seq_idx.shape == (1, 16)
    assert made.cu_seqlens.tolist() == [0, 5, 7, 11, 16]
    assert made.cu_seqlens.dtype == torch.int32
    assert made.position_ids.tolist() == [[*range(5), *range(2), *range(4), *range(5)]]
    assert made.position_ids.dtype == torch.int64
    assert (made.lengths, made.num_documents, made.max_seqlen) == ((5, 2, 4), 3, 5)


def test_one_document_and_padding_is_not_packed():
    assert not Boundaries.from_seq_lens([100], total=128).packed
    assert Boundaries.from_seq_lens([60, 40], total=128).packed
    assert not Boundaries.from_seq_lens([[100], [90]], total=128).packed


@pytest.mark.parametrize(("total", "expected"), [(8, [0, 3, 5, 8]), (64, [0, 3, 5, 64]), (5, [0, 3, 5])])
def test_padding_is_one_tail_whatever_its_size(total, expected):
    made = Boundaries.from_seq_lens([3, 2], total=total)
    assert made.cu_seqlens.tolist() == expected
    assert made.lengths == (3, 2)


def test_a_longer_tail_sets_the_maximum():
    assert Boundaries.from_seq_lens([3, 2], total=64).max_seqlen == 59


def test_several_rows_are_listed_row_by_row():
    made = Boundaries.from_seq_lens([[3, 2], [4]], total=6)
    assert made.lengths == (3, 2, 4)
    assert made.cu_seqlens.tolist() == [0, 3, 5, 6, 10, 12]
    assert made.seq_idx.tolist() == [[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, 1, 1]]
    assert made.position_ids.tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]


def test_positions_that_start_in_mid_document():
    made = Boundaries.from_position_ids(torch.tensor([[3, 4, 5, 0, 1]]))
    assert made.seq_idx.tolist() == [[0, 0, 0, 1, 1]]
    assert made.cu_seqlens.tolist() == [0, 3, 5]


def test_a_document_starts_where_the_position_does_not_go_up_by_one():
    assert Boundaries.from_position_ids([0, 1, 2, 7, 8, 2, 3]).lengths == (3, 2, 2)


def test_four_planes_use_the_text_plane_and_three_are_refused():
    text = torch.tensor([[0, 1, 2, 0, 1]])
    planes = torch.stack([text, text * 0, text * 0, text * 0])
    assert Boundaries.from_position_ids(planes).lengths == (3, 2)
    with pytest.raises(BoundariesError, match="3 planes"):
        Boundaries.from_position_ids(planes[1:])


def test_an_indexed_mask():
    assert Boundaries.from_indexed_mask([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0, 0]).lengths == (4, 3, 3)
    with pytest.raises(BoundariesError, match="padding must come last"):
        Boundaries.from_indexed_mask([0, 1, 1])
    with pytest.raises(BoundariesError, match=r"\[1, 3\]"):
        Boundaries.from_indexed_mask([1, 3, 3])


def test_an_indexed_mask_may_begin_with_any_number():
    assert Boundaries.from_indexed_mask([[1, 2, 2, 2], [3, 3, 4, 0], [5, 5, 5, 5]]).rows == ((1, 3), (2, 1), (4,))
    for wrong in ([3, 3, 5], [2, 2, 1], [-1, -1, 1]):
        with pytest.raises(BoundariesError, match="numbers its documents"):
            Boundaries.from_indexed_mask(wrong)


def test_documents_that_are_padding_become_the_tail():
    made = Boundaries.from_cu_seqlens([0, 3, 5, 8, 13, 16], row_length=8)
    assert made.without_padding([8, 8]) is made
    assert made.without_padding([5, 5]).rows == ((3, 2), (5,))
    assert made.without_padding([5, 5]).cu_seqlens.tolist() == [0, 3, 5, 8, 13, 16]
    assert not made.without_padding([3, 0]).packed
    assert made.without_padding([4, 8]).rows == ((3, 2), (5, 3)), "a document that padding begins in stays"


@pytest.mark.parametrize(
    "lengths",
    [
        [3, 2],
        (3, 2),
        [[3, 2]],
        np.array([3, 2], dtype=np.int64),
        np.array([[3, 2]], dtype=np.int32),
        torch.tensor([3, 2]),
        torch.tensor([3, 2], dtype=torch.int8),
        torch.tensor([3, 0, 2, 0])[::2],
        [torch.tensor([3, 2])],
        [np.int32(3), np.int64(2)],
    ],
)
def test_lengths_of_any_kind(lengths):
    assert Boundaries.from_seq_lens(lengths) == Boundaries(((3, 2),), 5, torch.device("cpu"))


def test_positions_that_are_not_contiguous():
    wide = torch.tensor([[0, 9, 1, 9, 2, 9, 0, 9, 1, 9]])
    made = Boundaries.from_position_ids(wide[:, ::2])
    assert made.lengths == (3, 2)
    assert made.seq_idx.is_contiguous()


def test_cumulative_lengths_of_several_rows():
    made = Boundaries.from_cu_seqlens(torch.tensor([0, 3, 6, 10]), total=12, row_length=6)
    assert made.rows == ((3, 3), (4,))
    with pytest.raises(BoundariesError, match=r"spans two rows of 6 \(batch size 2"):
        Boundaries.from_cu_seqlens([0, 3, 8, 12], total=12, row_length=6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Boundaries.from_seq_lens([]), "empty"),
        (lambda: Boundaries.from_seq_lens([[], []]), "empty"),
        (lambda: Boundaries.from_seq_lens([3, 0]), "holds 0"),
        (lambda: Boundaries.from_seq_lens([3, -1]), "holds -1"),
        (lambda: Boundaries.from_seq_lens([3.0, 2.0]), "integers"),
        (lambda: Boundaries.from_seq_lens([True, True]), "integers"),
        (lambda: Boundaries.from_seq_lens(torch.tensor([True])), "integers"),
        (lambda: Boundaries.from_seq_lens(torch.tensor([3.0])), "integers"),
        (lambda: Boundaries.from_seq_lens(np.array([3.0])), "integers"),
        (lambda: Boundaries.from_seq_lens([3, 2], total=4), "sum to 5, more than the 4"),
        (lambda: Boundaries.from_cu_seqlens([1, 3]), "start at 0"),
        (lambda: Boundaries.from_cu_seqlens([0]), "no document"),
        (lambda: Boundaries.from_cu_seqlens([0, 3, 3]), "3 is followed by 3"),
        (lambda: Boundaries.from_cu_seqlens([0, 3, 5], total=4), "ends at 5, past the 4"),
        (lambda: Boundaries.from_cu_seqlens(torch.tensor([[0, 3]])), "1-D"),
        (lambda: Boundaries.from_seq_idx(torch.tensor([[0, 0, 2]])), "from 0 to 2 at token 2"),
        (lambda: Boundaries.from_seq_idx(torch.tensor([[1, 0]])), "from 1 to 0 at token 1"),
        (lambda: Boundaries.from_seq_idx(torch.tensor([[0.0, 1.0]])), "integers"),
        (lambda: Boundaries.from_seq_idx([False, True]), "integers"),
        (lambda: Boundaries.from_position_ids(torch.zeros(0, dtype=torch.int64)), "not empty"),
        (lambda: Boundaries.from_packed_seq_lengths([3, 4], batch=2, row_length=5), "spans two rows"),
        (lambda: Boundaries.from_packed_seq_lengths([5, 5, 1], batch=2, row_length=5), "11 tokens, the batch has 10"),
    ],
)
def test_what_cannot_be_right_is_refused(make, message):
    with pytest.raises(BoundariesError, match=message):
        make()


def test_cumulative_lengths_are_new_tensors_at_each_call():
    made = Boundaries.from_seq_lens([3, 2])
    first, second = made.model_kwargs(), made.model_kwargs()
    assert first["cu_seq_lens_q"] is not second["cu_seq_lens_q"]
    assert first["cu_seq_lens_q"] is not first["cu_seq_lens_k"]
    assert type(first["max_length_q"]) is int


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(0, 5),
)
def test_every_description_of_the_same_documents_agrees(rows, tail):
    row_length = max(map(sum, rows)) + tail
    made = Boundaries.from_seq_lens(rows, total=row_length)
    tokens = row_length * len(rows)
    again = Boundaries.from_cu_seqlens(made.cu_seqlens, total=tokens, row_length=row_length)
    assert again.segments == made.segments
    assert Boundaries.from_seq_idx(made.seq_idx).segments == made.segments
    assert Boundaries.from_position_ids(made.position_ids).segments == made.segments
    assert made.cu_seqlens[-1] == tokens
    assert made.seq_idx.shape == made.position_ids.shape == (len(rows), row_length)
    assert made.seq_idx.device == made.device
