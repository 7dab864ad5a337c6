"""Running documents side by side equals running each alone, for any lengths, in value and gradient."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from patchwork.packing.batching import group, padded_length, plan, side_by_side  # noqa: E402
from patchwork.packing.boundaries import Boundaries, IsolationError  # noqa: E402


def running_sum(hidden, cut):
    """A causal mixer: each token sees all before it in its row. With a per-token weight and a table."""
    weighted = hidden * cut["weight"][..., None]
    cosine, sine = cut["table"]
    return weighted.cumsum(dim=1) * cosine + sine


def alone(hidden, weight, table, boundaries):
    rows = []
    for row, segments in enumerate(boundaries.segments):
        start = 0
        for length in segments:
            part = slice(start, start + length)
            cut = {
                "weight": weight[row : row + 1, part],
                "table": tuple(each[:, part] for each in table),
            }
            rows.append(running_sum(hidden[row : row + 1, part], cut))
            start += length
    return torch.cat(rows, dim=1).view_as(hidden)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 150), min_size=1, max_size=5), min_size=1, max_size=3),
    st.integers(0, 20),
)
def test_values_and_gradients_equal_each_document_alone(rows, tail):
    boundaries = Boundaries.from_seq_lens(rows, total=max(map(sum, rows)) + tail)
    shape = (len(rows), boundaries.row_length)
    torch.manual_seed(0)
    hidden = torch.randn(*shape, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    table = tuple(torch.randn(1, shape[1], 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    inputs = (hidden, weight, *table)

    ours = side_by_side(running_sum, boundaries, hidden, {"weight": weight, "table": table})
    theirs = alone(hidden, weight, table, boundaries)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(theirs)
    for mine, reference in zip(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(mine, reference)
    if boundaries.packed:
        whole_row = running_sum(hidden, {"weight": weight, "table": table})
        assert not torch.allclose(whole_row, theirs), "the control: on the whole row it does leak"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60))
def test_buckets_hold_each_document_once_and_stay_few(lengths):
    groups = group(lengths)
    assert sorted(number for members in groups for number in members) == list(range(len(lengths)))
    padded = sum(max(lengths[number] for number in members) * len(members) for members in groups)
    assert padded <= sum(map(padded_length, lengths)) + 128 * len(groups)
    assert len(groups) <= len(set(map(padded_length, lengths)))
    assert len(group(lengths, call_cost=10**9)) == 1


def test_the_plan_is_made_once():
    boundaries = Boundaries.from_seq_lens([300, 3, 1])
    assert plan(boundaries) is plan(boundaries)


def test_equal_documents_need_no_gather():
    assert plan(Boundaries.from_seq_lens([128] * 16)).in_place
    assert plan(Boundaries.from_seq_lens([[9], [9]])).in_place
    assert not plan(Boundaries.from_seq_lens([128, 64, 128])).in_place


def test_results_may_be_tuples():
    boundaries = Boundaries.from_seq_lens([2, 3])
    hidden = torch.randn(1, 5, 4)
    output, nothing = side_by_side(lambda documents, cut: (documents.cumsum(1), None), boundaries, hidden)
    assert nothing is None
    torch.testing.assert_close(output[:, 2:], hidden[:, 2:].cumsum(1))


def test_channels_and_tokens_are_not_confused():
    boundaries = Boundaries.from_seq_lens([2, 3])
    hidden = torch.randn(1, 5, 7)
    output = side_by_side(lambda documents, cut: documents.cumsum(1), boundaries, hidden)
    torch.testing.assert_close(output[:, :2], hidden[:, :2].cumsum(1))
    torch.testing.assert_close(output[:, 2:], hidden[:, 2:].cumsum(1))


def test_a_row_of_another_length_is_refused():
    boundaries = Boundaries.from_seq_lens([2, 3])
    with pytest.raises(IsolationError, match="1 x 5 tokens"):
        side_by_side(lambda documents, cut: documents, boundaries, torch.randn(1, 6, 4))
    with pytest.raises(IsolationError, match="argument per token"):
        side_by_side(lambda documents, cut: documents, boundaries, torch.randn(1, 5, 4), {"x": torch.ones(3, 1, 5)})
    with pytest.raises(IsolationError, match="returned"):
        side_by_side(lambda documents, cut: documents[:, :1], boundaries, torch.randn(1, 5, 4))
