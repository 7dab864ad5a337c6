"""Running documents side by side equals running each alone, for any lengths, in value and gradient."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from patchwork.packing.boundaries import Boundaries  # noqa: E402
from patchwork.packing.errors import IsolationError  # noqa: E402
from patchwork.packing.runtime import document_batching as batching  # noqa: E402
from patchwork.packing.runtime.document_batching import (  # noqa: E402
    CALL_COST,
    OTHER_CALL_COST,
    chunk_length,
    group,
    padded_length,
    plan,
    side_by_side,
)


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


@settings(max_examples=60)
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


# ---- buckets ------------------------------------------------------------------------------------------------------

LENGTHS = st.one_of(
    st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=60),
    st.builds(lambda most: list(range(1, most + 1)), st.integers(1, 200)),
    st.builds(lambda ones, long: [1] * ones + [long], st.integers(0, 200), st.integers(1, 4096)),
    st.lists(st.integers(0, 12).map(lambda power: 2**power), min_size=1, max_size=60),
)
CALLS = (0, 1, CALL_COST["cpu"], OTHER_CALL_COST, 10**9)


def places(lengths, groups):
    return sum(max(lengths[number] for number in members) * len(members) for members in groups)


def least(lengths, slope, call_cost):
    """The least cost of any buckets, by trying every place where one can end."""
    ordered, best = sorted(lengths, reverse=True), [0]
    for end in range(1, len(ordered) + 1):
        best.append(min(best[begin] + call_cost + slope(ordered[begin]) * (end - begin) for begin in range(end)))
    return best[-1]


def fewest_places(lengths, calls):
    """The fewest places that so many buckets can have."""
    ordered, best = sorted(lengths, reverse=True), [0, *[10**18] * len(lengths)]
    for _ in range(calls):
        ends = range(1, len(best))
        best = [10**18, *(min(best[begin] + ordered[begin] * (end - begin) for begin in range(end)) for end in ends)]
    return best[-1]


@settings(max_examples=300)
@given(LENGTHS, st.sampled_from(CALLS))
def test_no_mix_of_lengths_is_padded_by_more_than_a_quarter(lengths, call_cost):
    groups = group(lengths, call_cost)
    assert sorted(number for members in groups for number in members) == list(range(len(lengths)))
    assert places(lengths, groups) <= 1.25 * sum(lengths)


@settings(max_examples=150)
@given(LENGTHS, st.sampled_from(CALLS))
def test_no_other_buckets_cost_less(lengths, call_cost):
    lengths = lengths[:40]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "MOST_PADDING", 10**9)
        groups = group(lengths, call_cost)

    def slope(length):
        return padded_length(length) + length

    cost = sum(slope(max(lengths[number] for number in members)) * len(members) + call_cost for members in groups)
    assert cost == least(lengths, slope, call_cost)


@settings(max_examples=150)
@given(LENGTHS)
def test_where_calls_are_dear_there_is_hardly_one_more_than_the_padding_allows(lengths):
    lengths = lengths[:40]
    calls = len(group(lengths, 10**9))
    # One more at most: fewer by two would be padded too much.
    assert calls <= 2 or fewest_places(lengths, calls - 2) > 1.25 * sum(lengths)


@pytest.mark.parametrize(
    ("lengths", "calls"), [(list(range(1, 201)), 4), ([29, 21, 6, 18], 2), ([2**power for power in range(12)], 4)]
)
def test_where_calls_are_dear_there_are_as_few_as_the_padding_allows(lengths, calls):
    assert len(group(lengths, 10**9)) == calls
    assert fewest_places(lengths, calls - 1) > 1.25 * sum(lengths)


def test_chunks_waste_little():
    assert {chunk_length(length) for length in range(1, 5000)} == {16, 32, 48, 64}
    lengths = list(map(padded_length, range(1, 5000)))
    assert lengths == sorted(lengths), "slopes of the cheapest buckets have to fall"
    for length, padded in enumerate(lengths, start=1):
        assert length <= padded < length + 16 * -(-length // 64)


def test_the_plan_is_made_once_for_all_layers_and_the_recompute(monkeypatch):
    made, gathered = [], []
    make = batching._make

    def counted(boundaries, padded):
        made.append(boundaries)
        return make(boundaries, padded)

    monkeypatch.setattr(batching, "_make", counted)

    def mixer(documents, cut):
        gathered.append(tuple(documents.shape))
        return documents.cumsum(1)

    def layer(hidden, boundaries):
        return hidden + side_by_side(mixer, boundaries, hidden)

    first, second = Boundaries.from_seq_lens([300, 3, 1]), Boundaries.from_seq_lens([300, 3, 1])
    for boundaries in (first, second):
        hidden = torch.randn(1, 304, 2, requires_grad=True)
        for _ in range(3):
            hidden = checkpoint(layer, hidden, boundaries, use_reentrant=False)
        hidden.sum().backward()
    assert len(gathered) == 2 * 2 * 3 * len(plan(first).shapes), "the control: each layer ran, and once more going back"
    assert made == [first, second]


# ---- there and back -----------------------------------------------------------------------------------------------


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


def test_token_ids_and_streams_are_gathered_too():
    boundaries = Boundaries.from_seq_lens([4, 1, 3], total=9)
    ids = torch.arange(9)[None]
    assert torch.equal(side_by_side(lambda documents, cut: documents, boundaries, ids), ids)
    streams = torch.randn(1, 9, 2, 3)
    output = side_by_side(
        lambda documents, cut: documents.cumsum(1) * cut["ids"][..., None, None], boundaries, streams, {"ids": ids}
    )
    torch.testing.assert_close(output[:, 5:8], streams[:, 5:8].cumsum(1) * ids[:, 5:8, None, None])


def test_documents_of_one_length_run_together_where_nothing_may_be_padded():
    boundaries, shapes = Boundaries.from_seq_lens([4, 3, 4, 2, 3], total=18), []
    hidden = torch.randn(1, 18, 5)

    def mixer(documents, cut):
        shapes.append(tuple(documents.shape[:2]))
        return documents.flip(1)  # sees what is behind a token

    output = side_by_side(mixer, boundaries, hidden, padded=False)
    assert shapes == [(2, 4), (2, 3), (2, 2)]
    torch.testing.assert_close(output[:, 4:7], hidden[:, 4:7].flip(1))
    side_by_side(mixer, boundaries, hidden)
    assert len(shapes) < 6, "the same boundaries, padded"


def test_results_that_are_not_per_token_are_refused():
    boundaries = Boundaries.from_seq_lens([2, 3])
    with pytest.raises(IsolationError, match="returned"):
        side_by_side(lambda documents, cut: (documents, torch.zeros(7)), boundaries, torch.randn(1, 5, 4))


def test_a_mixer_may_write_into_what_it_is_given():
    boundaries = Boundaries.from_seq_lens([300, 3, 1])
    leaf = torch.randn(1, 304, 2, requires_grad=True)
    side_by_side(lambda documents, cut: documents.mul_(2), boundaries, leaf * 1).sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(leaf, 2))
    assert len(plan(boundaries).shapes) > 1


# ---- masks of attention -------------------------------------------------------------------------------------------

HEADS, WIDTH = 2, 3


def attention(hidden, cut):
    heads = hidden.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=cut["mask"]).transpose(1, 2).flatten(2)


def causal_window(length, window, additive, batch, heads, generator):
    """The mask of a sliding window on whole rows, different for each head where it is additive."""
    step = torch.arange(length)
    seen = (step[:, None] >= step) & (step[:, None] - step < window)
    if not additive:
        return seen.expand(batch, heads, length, length)
    bias = torch.randn(batch, heads, length, length, dtype=torch.float64, generator=generator)
    return bias.masked_fill(~seen, torch.finfo(torch.float64).min)


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=5), min_size=1, max_size=3),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from((1, HEADS)),
    st.integers(1, 12),
)
def test_attention_with_a_mask_equals_each_document_alone(rows, tail, additive, shared, heads, window):
    boundaries = Boundaries.from_seq_lens(rows, total=max(map(sum, rows)) + tail)
    batch, length = len(rows), boundaries.row_length
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(batch, length, HEADS * WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)
    mask = causal_window(length, window, additive, 1 if shared else batch, heads, generator)

    expected = []
    for row, segments in enumerate(boundaries.segments):
        start = 0
        for segment in segments:
            part = slice(start, start + segment)
            square = mask[min(row, len(mask) - 1)][None, :, part, part]
            expected.append(attention(hidden[row : row + 1, part], {"mask": square}))
            start += segment
    theirs = torch.cat(expected, dim=1).view_as(hidden)
    ours = side_by_side(attention, boundaries, hidden, masks={"mask": mask})
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(theirs)
    mine, reference = (torch.autograd.grad(output, hidden, upstream)[0] for output in (ours, theirs))
    torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("additive", [False, True])
def test_a_tail_that_sees_nothing_of_its_own_stays_finite(additive):
    boundaries = Boundaries.from_seq_lens([3, 4], total=12)
    mask = torch.ones(1, 1, 12, 12, dtype=torch.bool).tril()
    mask[..., 7:] = False
    if additive:
        mask = torch.zeros(1, 1, 12, 12).masked_fill(~mask, -torch.inf)
    hidden = torch.randn(1, 12, HEADS * WIDTH, requires_grad=True)

    def eager(documents, cut):
        scores = (documents @ documents.mT)[:, None]
        scores = scores + cut["mask"] if additive else scores.masked_fill(~cut["mask"], -torch.inf)
        return scores.softmax(-1).squeeze(1) @ documents

    assert eager(hidden[:, 7:], {"mask": mask[..., 7:, 7:]}).isnan().all(), "the control: softmax of nothing"
    output = side_by_side(eager, boundaries, hidden, masks={"mask": mask})
    output.sum().backward()
    assert output.isfinite().all()
    assert hidden.grad.isfinite().all()


def test_what_is_no_mask_of_rows_is_refused():
    boundaries, hidden = Boundaries.from_seq_lens([2, 3]), torch.randn(1, 5, HEADS * WIDTH)

    def run(mask):
        side_by_side(attention, boundaries, hidden, masks={"mask": mask})

    run(None)
    for shape in ((1, 5), (1, 1, 5, 8), (2, 1, 5, 5)):
        with pytest.raises(IsolationError, match=r"mask is a Tensor of shape .* expected \(1, heads or 1, 5, 5\)"):
            run(torch.ones(shape, dtype=torch.bool))
    with pytest.raises(IsolationError, match=r"neither bool nor additive"):
        run(torch.ones(1, 1, 5, 5, dtype=torch.int64))
    with pytest.raises(IsolationError, match="mask is a str"):
        run("causal")
