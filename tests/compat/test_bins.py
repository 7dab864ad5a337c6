"""Each token of a dataset comes out of packing once, and where its document begins is known."""

from __future__ import annotations

import itertools
import warnings

import pytest

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
pa = pytest.importorskip("pyarrow")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from packaging.version import Version  # noqa: E402

from patchwork.packing.errors import PackingWarning  # noqa: E402
from patchwork.packing.trainers.dataset_packing import accounted, columns_of, pack_wrapped, packer_for_training  # noqa: E402

DOCUMENTS = st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=12)
VERSION = Version(trl.__version__)
SPLITTING = "bfd-requeue" if Version("1.0") > VERSION else "bfd_split"


def dataset_of(documents):
    features = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int64"))})
    return datasets.Dataset.from_dict({"input_ids": documents}, features=features)


@given(DOCUMENTS, st.integers(1, 7), st.data())
@settings(max_examples=150, deadline=None)
def test_wrapped_rows_are_the_stream_cut_at_documents_and_rows(documents, width, data):
    table = pa.table(
        {"input_ids": pa.array(documents, pa.list_(pa.int64())), "labels": pa.array(documents, pa.list_(pa.int32()))}
    )
    start = data.draw(st.integers(0, len(documents)))
    packed = pack_wrapped(table.slice(start), width).to_pydict()
    stream = [(token, number) for number, tokens in enumerate(documents[start:]) for token in tokens]
    rows = [stream[at : at + width] for at in range(0, len(stream), width)]
    assert packed["input_ids"] == packed["labels"] == [[token for token, _ in row] for row in rows]
    assert packed["seq_lengths"] == [
        [len(list(piece)) for _, piece in itertools.groupby(row, key=lambda e: e[1])] for row in rows
    ]


def test_columns_that_do_not_fit_together_raise(patched):
    with pytest.raises(ValueError, match="input_ids and labels cannot be packed together"):
        pack_wrapped(pa.table({"input_ids": [[1, 2]], "labels": [[1]]}), 4)
    with pytest.raises(ValueError, match="column text holds string"):
        pack_wrapped(pa.table({"input_ids": [[1, 2]], "text": ["ab"]}), 4)
    with pytest.raises(ValueError, match="lists of double, not of integers"):
        trl.pack_dataset(datasets.Dataset.from_dict({"input_ids": [[0.5]]}), 4, "bfd", {})
    shifted = datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": [[1], [2, 3]]})
    with pytest.raises(ValueError, match=r"row 0 has 2 and 1 entries"):
        trl.pack_dataset(shifted, 4, "bfd", {})


@pytest.mark.parametrize("width", [0, -1, 4.5])
@pytest.mark.parametrize("strategy", ["bfd", "wrapped"])
def test_rows_hold_at_least_one_token(strategy, width, patched):
    with pytest.raises(ValueError, match=f"max_length={width}"):
        trl.pack_dataset(dataset_of([[1, 2]]), width, strategy, {})


def test_several_datasets_are_packed_each_by_itself(patched):
    documents = {"train": [[1, 2, 3], [], [4]], "test": [[5, 6], [7, 8, 9, 10, 11]]}
    given = datasets.DatasetDict({name: dataset_of(part) for name, part in documents.items()})
    with pytest.warns(PackingWarning, match="1 of 3 documents are empty"):
        packed = packer_for_training(trl.pack_dataset)(given, 4, "wrapped", {})
    assert isinstance(packed, datasets.DatasetDict)
    assert packed["train"]["input_ids"][:] == [[1, 2, 3, 4]]
    assert packed["test"]["seq_lengths"][:] == [[2, 2], [3]]


def test_columns_of_other_names_are_packed_where_nobody_trains(patched):
    rows = {"tokens": [[1, 2], [3]], "weights": [[0.5, 1.0], [0.25]]}
    packed = trl.pack_dataset(datasets.Dataset.from_dict(rows), 4, "wrapped", {})
    assert packed["weights"][:] == [[0.5, 1.0, 0.25]]
    assert next(iter(trl.pack_dataset(datasets.Dataset.from_dict(rows).to_iterable_dataset(), 4, "bfd", {})))["tokens"] == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("strategy", ["bfd", "wrapped", SPLITTING])
def test_no_token_is_lost_or_there_twice_in_any_strategy(strategy, patched):
    if strategy == SPLITTING and Version("0.29") > VERSION:
        pytest.skip("this release has no such strategy")
    documents = [[number * 10 + place for place in range(number % 7)] for number in range(2500)]
    with pytest.warns(PackingWarning, match=r"358 of 2500 documents are empty"):
        packed = packer_for_training(trl.pack_dataset)(dataset_of(documents), 6, strategy, {})
    assert sorted(token for row in packed["input_ids"] for token in row) == sorted(itertools.chain(*documents))
    assert [sum(lengths) for lengths in packed["seq_lengths"]] == [len(row) for row in packed["input_ids"]]
    assert all(0 < len(row) <= 6 for row in packed["input_ids"])


def test_stock_wrapped_packing_loses_tokens_of_later_batches():
    """The control, where the release has the fault."""
    if not Version("1.0") <= VERSION < Version("1.14"):
        pytest.skip("this release does not have the fault")
    documents = [[number * 10 + place for place in range(1, 6)] for number in range(2500)]
    packed = trl.pack_dataset(dataset_of(documents), 6, "wrapped", {})
    assert sorted(token for row in packed["input_ids"] for token in row) != sorted(itertools.chain(*documents))


def test_what_is_cut_is_counted(patched):
    documents = [[1, 2, 3, 4], [5, 6], [7, 8, 9], [10]]
    splits = Version("0.27") <= VERSION < Version("0.29")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        packed = trl.pack_dataset(dataset_of(documents), 3, "bfd", {})
    assert sum(map(len, packed["input_ids"])) == (10 if splits else 9)
    texts = [str(each.message) for each in caught if each.category is PackingWarning]
    assert (
        texts == []
        if splits
        else len(texts) == 1 and "the ends of 1 of 4 documents to max_length=3: 10 tokens in, 9 out" in texts[0]
    )


def test_what_is_cut_of_a_stream_is_counted_as_it_is_read(patched):
    if Version("0.27") <= VERSION < Version("0.29"):
        pytest.skip("this release splits documents")
    stream = dataset_of([[1, 2, 3, 4], [], [5, 6]]).to_iterable_dataset()
    packed = trl.pack_dataset(stream, 3, "bfd", {})
    with pytest.warns(PackingWarning, match="1 of 2 documents to max_length=3: 6 tokens in, 5 out"):
        rows = list(packed)
    assert sorted(token for row in rows for token in row["input_ids"]) == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(("documents", "width"), [([[1], [2]], 4), ([[1, 2], [3]], 1)], ids=["documents", "rows"])
def test_documents_of_one_token_are_told(documents, width, patched):
    with pytest.warns(PackingWarning, match=f"to max_length={width} gave documents of one token only"):
        packer_for_training(trl.pack_dataset)(dataset_of(documents), width, "wrapped", {})


@pytest.mark.parametrize("documents", [[], [[], []]], ids=["no rows", "empty rows"])
def test_a_dataset_without_tokens_raises(documents, patched):
    with pytest.raises(ValueError, match=f"{len(documents)} documents and no token"):
        trl.pack_dataset(dataset_of(documents), 4, "bfd", {})


def test_a_packer_that_loses_tokens_or_boundaries_is_noticed():
    from patchwork.packing import IsolationError

    dataset = dataset_of([[1, 2], [3, 4]])
    with pytest.raises(IsolationError, match="2 tokens of 4"):
        accounted(dataset.select([0]).add_column("seq_lengths", [[2]]), dataset, 4, "bfd")
    with pytest.raises(IsolationError, match="rows without seq_lengths"):
        accounted(dataset, dataset, 4, "bfd")
    with pytest.raises(IsolationError, match="rows without seq_lengths"):
        accounted(dataset, dataset, 4, "wrapped", seq_lengths=True)
    assert accounted(dataset, dataset, 4, "wrapped") is dataset


def test_a_stream_that_does_not_know_its_columns_is_asked_for_one_example():
    stream = dataset_of([[1, 2]]).to_iterable_dataset().map(lambda example: {"labels": example["input_ids"]})
    assert set(columns_of(stream)) == {"input_ids", "labels"}
    assert len(list(stream)) == 1


@pytest.mark.parametrize("strategy", ["bfd", "wrapped"])
def test_several_columns_get_one_column_of_lengths_with_one_list_a_row(strategy, patched):
    documents = [[number * 10 + place for place in range(1 + number % 4)] for number in range(30)]
    negated = [[-token for token in tokens] for tokens in documents]
    dataset = datasets.Dataset.from_dict({"input_ids": documents, "labels": negated, "completion_mask": documents})
    packed = packer_for_training(trl.pack_dataset)(dataset, 6, strategy, {})
    assert packed.column_names == ["input_ids", "labels", "completion_mask", "seq_lengths"]
    for row in packed:
        assert sum(row["seq_lengths"]) == len(row["input_ids"])
        assert row["labels"] == [-token for token in row["input_ids"]]
        assert row["completion_mask"] == row["input_ids"]
