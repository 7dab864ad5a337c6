"""Packs documents into rows with their boundaries, and accounts for each token. Works around TRL's packer."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from ..errors import IsolationError, PackingWarning
from .dataset_rows import BESIDE, holds_several

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

logger = logging.getLogger("patchwork.packing")

# The parameter of `pack_dataset`, added by its patch, by which a trainer asks for `seq_lengths` in rows of `wrapped`.
_ASKS_FOR_LENGTHS = "_patchwork_seq_lengths"
# The columns of tokens, and of what is said of each, that TRL packs by itself; a caller of `pack_dataset` may have others.
_WHOLE = ("input_ids", "labels", "attention_mask", "completion_mask", "assistant_masks")


def pack_wrapped(examples: pa.Table, seq_length: int) -> pa.Table:
    """TRL's `wrapped` packing, with its boundaries: one stream of tokens, cut into rows of `seq_length`.

    `examples`: a table whose columns are lists of equal lengths. Returns a table of the same columns and `seq_lengths`, the
    lengths of the pieces of documents in each row; a document that a row's end cuts counts as two. Each token comes out
    once, in order; empty documents leave no trace.

    Raises ValueError for columns that are not lists, tokens that are not integers, and columns whose lengths differ.
    """
    import numpy as np
    import pyarrow as pa

    columns = {name: examples.column(name).combine_chunks() for name in examples.column_names}
    ends = np.cumsum(_row_lengths(columns))
    total = int(ends[-1]) if len(ends) else 0
    rows = np.minimum(np.arange(0, total + seq_length, seq_length), total)
    cuts = np.unique(np.concatenate([[0], ends, rows]))
    pieces = np.diff(cuts).astype(np.int32)
    packed = {name: _regrouped(column, column.flatten(), rows) for name, column in columns.items()}
    packed["seq_lengths"] = pa.ListArray.from_arrays(np.searchsorted(cuts, rows).astype(np.int32), pa.array(pieces))
    return pa.table(packed)


def pack_wrapped_as_trl(examples: pa.Table, seq_length: int) -> pa.Table:
    """The rows of `pack_wrapped` with the columns of `examples` alone, as TRL's own `wrapped` packing gives them."""
    return pack_wrapped(examples, seq_length).drop_columns(["seq_lengths"])


def packer_for_training(pack_dataset: Callable[..., Any]) -> Callable[..., Any]:
    """TRL's `pack_dataset` as a trainer calls it: rows of `wrapped` get the column `seq_lengths` too.

    Other callers of `pack_dataset` get TRL's columns. A packer without the parameter that asks for it is returned as it is.
    """
    if _ASKS_FOR_LENGTHS not in inspect.signature(pack_dataset).parameters:
        return pack_dataset
    return functools.partial(pack_dataset, **{_ASKS_FOR_LENGTHS: True})


def _regrouped(column: Any, values: Any, offsets: np.ndarray[Any, Any]) -> Any:
    return type(column).from_arrays(offsets.astype(column.offsets.type.to_pandas_dtype()), values)


def _row_lengths(columns: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """How many tokens each row has, in all columns alike."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    first: tuple[str, Any] | None = None
    for name, column in columns.items():
        kind = column.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise ValueError(f"column {name} holds {kind}, not lists of tokens: it cannot be packed")
        whole = any(is_one(kind.value_type) for is_one in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null))
        if name in _WHOLE and not whole:
            raise ValueError(f"column {name} holds lists of {kind.value_type}, not of integers: it cannot be packed")
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        first = first or (name, lengths)
        if not np.array_equal(lengths, first[1]):
            row = int(np.flatnonzero(lengths != first[1])[0])
            raise ValueError(
                f"columns {first[0]} and {name} cannot be packed together: row {row} has {first[1][row]} and "
                f"{lengths[row]} entries; give one for each token"
            )
    if first is None:
        raise ValueError("there is no column to pack")
    return np.asarray(first[1])


def packable(dataset: Any, seq_length: int, strategy: str) -> Any:
    """What TRL's `pack_dataset` is to pack of a dataset: empty documents are left out.

    Of a stream, a PackingWarning counts batch by batch, as they are read, what the strategy cuts.

    Raises ValueError for rows shorter than a token, a dataset without one, and columns that are not lists of tokens or not
    equally long.
    """
    from datasets import Dataset

    if not hasattr(seq_length, "__index__") or seq_length < 1:
        raise ValueError(f"max_length={seq_length!r}: a packed row holds a number of tokens, and at least one")
    if isinstance(dataset, dict):
        return type(dataset)({name: packable(part, seq_length, strategy) for name, part in dataset.items()})
    if not isinstance(dataset, Dataset):
        dataset = dataset.filter(_has_tokens)
        if truncates(strategy):
            dataset = dataset.map(_note_cuts, batched=True, fn_kwargs={"what": "packing", "seq_length": seq_length})
        return dataset
    import numpy as np

    lengths = _lengths(dataset)
    if not lengths.any():
        raise ValueError(f"the dataset holds {len(lengths)} documents and no token: there is nothing to pack")
    if not lengths.all():
        warnings.warn(
            f"{int((lengths == 0).sum())} of {len(lengths)} documents are empty: left out", PackingWarning, stacklevel=3
        )
        dataset = dataset.select(np.flatnonzero(lengths))
    return dataset


def accounted(packed: Any, documents: Any, seq_length: int, strategy: str, seq_lengths: bool = False) -> Any:
    """`packed`, which TRL's packer made of `documents`, once each token is accounted for; a stream is returned as it is.

    `seq_lengths`: whether rows of `wrapped` must have that column; those of other strategies always must. A PackingWarning
    says how many documents were cut, and how many tokens came in and went out.

    Raises IsolationError where tokens are lost that the strategy keeps, or rows do not say where their documents begin.
    """
    from datasets import Dataset

    if isinstance(documents, dict):
        parts = {name: accounted(packed[name], part, seq_length, strategy, seq_lengths) for name, part in documents.items()}
        return type(packed)(parts)
    if not isinstance(documents, Dataset):
        return packed
    import numpy as np

    described = "seq_lengths" in packed.column_names
    if not described and (seq_lengths or strategy != "wrapped"):
        raise IsolationError(f"packing with {strategy!r} gave rows without seq_lengths, so their documents are not known")
    if described and _longest(packed) == 1:
        warnings.warn(
            f"packing to max_length={seq_length} gave documents of one token only: nothing is predicted, and the loss is 0",
            PackingWarning,
            stacklevel=3,
        )
    lengths = _lengths(documents)
    tokens, out = int(lengths.sum()), int(_lengths(packed.select_columns(documents.column_names)).sum())
    if out != tokens and not (truncates(strategy) and out == int(np.minimum(lengths, seq_length).sum())):
        raise IsolationError(f"packing with {strategy!r} made {out} tokens of {tokens}: some are lost or there twice")
    if out != tokens:
        _warn_of_cuts("packing", lengths, seq_length)
    logger.info("packed %d documents into %d rows: %d tokens in, %d out", len(lengths), len(packed), tokens, out)
    return packed


def with_cuts_counted(dataset: Any, seq_length: int | None) -> Any:
    """A dataset whose documents are going to be cut to `seq_length`, one to a row, after a PackingWarning that counts them."""
    from datasets import Dataset

    if seq_length is None:
        return dataset
    what = "without packing, TRL"
    if not isinstance(dataset, Dataset):
        return dataset.map(_note_cuts, batched=True, fn_kwargs={"what": what, "seq_length": seq_length})
    lengths = _lengths(dataset.select_columns(["input_ids"]))
    if (lengths > seq_length).any():
        _warn_of_cuts(what, lengths, seq_length)
    return dataset


def columns_of(dataset: Any) -> list[str]:
    """The columns of a dataset; of a stream that does not know them, those of its first example."""
    columns = getattr(dataset, "column_names", None)
    return list(next(iter(dataset), {}) if columns is None else columns)


def is_list(dataset: Any, name: str, columns: Collection[str]) -> bool:
    """Whether a column is there and has several entries a row, as far as is known; a stream may not say."""
    features = getattr(dataset, "features", None)
    return name in columns and (features is None or type(features.get(name)).__name__ != "Value")


def packed_row(dataset: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """The first row of a dataset that holds several documents by the columns `names`, as `documents_of` reads them, if there is
    one: these columns of it, and those that say what they mean."""
    columns = [*names, *(name for name in BESIDE if name in dataset.column_names)]
    for batch in dataset.select_columns(columns).with_format("arrow").iter(batch_size=10_000):
        for number in _stepping(batch, names):
            row: dict[str, Any] = batch.slice(number, 1).to_pylist()[0]
            if holds_several(row):
                return row
    return None


def _stepping(batch: pa.Table, names: Sequence[str]) -> list[int]:
    """The rows that may hold several: a position is not one more than that before, a document's number another."""
    import numpy as np
    import pyarrow as pa

    found = set[int]()
    for name in names:
        column = batch.column(name).combine_chunks()
        if not pa.types.is_integer(column.type.value_type):
            continue
        lengths = _row_lengths({name: column})
        if name not in ("position_ids", "seq_idx"):  # lengths, or cumulative ones
            found.update(np.flatnonzero(lengths > 1).tolist())
            continue
        ends = np.cumsum(lengths)
        steps = np.diff(column.flatten().to_numpy(zero_copy_only=False)) != (name == "position_ids")
        places = np.flatnonzero(steps) + 1
        found.update(np.searchsorted(ends, places[~np.isin(places, ends)], side="right").tolist())
    return sorted(found)


def _lengths(dataset: Any) -> np.ndarray[Any, Any]:
    """Tokens of each row, read column-wise."""
    import numpy as np

    batches = dataset.with_format("arrow").iter(batch_size=10_000)
    parts = [_row_lengths({name: batch.column(name).combine_chunks() for name in batch.column_names}) for batch in batches]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _longest(packed: Any) -> int:
    """Tokens of the longest piece of a document in a packed dataset."""
    import pyarrow.compute as pc

    batches = packed.select_columns(["seq_lengths"]).with_format("arrow").iter(batch_size=10_000)
    return max((pc.max(batch.column("seq_lengths").combine_chunks().flatten()).as_py() or 0 for batch in batches), default=0)


def truncates(strategy: str) -> bool:
    """Whether documents longer than a row lose their end: `bfd` does, but in TRL 0.27 and 0.28 it splits them."""
    return strategy == "bfd" and not Version("0.27") <= _trl() < Version("0.29")


def _has_tokens(example: Mapping[str, Any]) -> bool:
    return len(_tokens_of(example)) > 0


def _tokens_of(columns: Mapping[str, Any]) -> Any:
    """The column of tokens: `input_ids`, or whatever is first."""
    return columns["input_ids"] if "input_ids" in columns else next(iter(columns.values()))


def _note_cuts(batch: Mapping[str, Any], what: str, seq_length: int) -> dict[str, Any]:
    import numpy as np

    lengths = np.array([len(tokens) for tokens in _tokens_of(batch)])
    if (lengths > seq_length).any():
        _warn_of_cuts(what, lengths, seq_length)
    return {}


def _warn_of_cuts(what: str, lengths: np.ndarray[Any, Any], seq_length: int) -> None:
    import numpy as np

    packing = what == "packing"
    warnings.warn(
        f"{what} cuts {'the ends of ' if packing else ''}{int((lengths > seq_length).sum())} of {len(lengths)} documents to "
        f"max_length={seq_length}: {int(lengths.sum())} tokens in, {int(np.minimum(lengths, seq_length).sum())} out. To keep "
        "them, raise max_length" + (f", or use packing_strategy={keeping()!r}" if packing else ""),
        PackingWarning,
        stacklevel=3,
    )


def keeping() -> str:
    """A strategy of the installed TRL that keeps every token, and documents whole where it can."""
    release = _trl()
    return "bfd_split" if release >= Version("1.0") else "bfd-requeue" if release >= Version("0.29") else "wrapped"


def _trl() -> Version:
    import trl

    return Version(trl.__version__)
