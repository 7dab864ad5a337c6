"""How are documents dealt to rows, and is each token accounted for? Around the packer of TRL, and in place of one of its ways."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from patchwork.packing.boundaries import IsolationError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

logger = logging.getLogger("patchwork.packing")


class PackingWarning(UserWarning):
    """Packing goes on, or is left out, in a way that its user should know of."""


def pack_wrapped(examples: pa.Table, seq_length: int) -> pa.Table:
    """TRL's `wrapped` packing, with its boundaries: one stream of tokens, cut into rows of `seq_length`.

    `examples`: a table whose columns are lists of equal lengths. Returns a table of the same columns and `seq_lengths`, the
    lengths of the pieces of documents in each row; a document that a row's end cuts counts as two. Each token comes out
    once, in order; empty documents leave no trace.

    Raises ValueError for columns that are not lists of integers, or whose lengths differ.
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
        if not (
            pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type) or pa.types.is_null(kind.value_type)
        ):
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


def pack(
    pack_dataset: Callable[..., Any], dataset: Any, seq_length: int, strategy: str, map_kwargs: Mapping[str, Any] | None = None
) -> Any:
    """`pack_dataset(dataset, seq_length, strategy, map_kwargs)` of TRL, with its tokens counted.

    Empty documents are left out before. A PackingWarning says how many documents were cut, and how many tokens came in and
    went out; of a stream it says so batch by batch as they are read.

    Raises ValueError for rows shorter than a token, a dataset without one, and columns that are not lists of integers or not
    equally long; IsolationError where the packer lost tokens that it should have kept, or did not say where documents begin.
    """
    from datasets import Dataset

    if seq_length < 1:
        raise ValueError(f"max_length={seq_length}: a packed row holds at least one token")
    if not isinstance(dataset, Dataset):
        dataset = dataset.filter(_has_tokens)
        if _truncates(strategy):
            dataset = dataset.map(_note_cuts, batched=True, fn_kwargs={"what": "packing", "seq_length": seq_length})
        return pack_dataset(dataset, seq_length, strategy, map_kwargs)
    import numpy as np

    lengths = _lengths(dataset)
    if not lengths.any():
        raise ValueError(f"the dataset holds {len(lengths)} documents and no token: there is nothing to pack")
    if not lengths.all():
        warnings.warn(
            f"{int((lengths == 0).sum())} of {len(lengths)} documents are empty: left out", PackingWarning, stacklevel=2
        )
        dataset = dataset.select(np.flatnonzero(lengths))
    packed = pack_dataset(dataset, seq_length, strategy, map_kwargs)
    if "seq_lengths" not in packed.column_names:
        raise IsolationError(f"packing with {strategy!r} gave rows without seq_lengths, so their documents are not known")
    tokens, out = int(lengths.sum()), int(_lengths(packed.select_columns(["input_ids"])).sum())
    if out != tokens and out != int(np.minimum(lengths, seq_length).sum()):
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
    return list(getattr(dataset, "column_names", None) or next(iter(dataset), {}))


def is_list(dataset: Any, name: str, columns: Collection[str]) -> bool:
    """Whether a column is there and has several entries a row, as far as is known; a stream may not say."""
    return name in columns and type((getattr(dataset, "features", None) or {}).get(name)).__name__ != "Value"


def packed_by(dataset: Any, name: str) -> bool:
    """Whether some row of a dataset, or the first of a stream, has a document that begins within it, by its `position_ids`
    (they fall) or its `seq_idx` (it rises); each has one entry a token."""
    import numpy as np
    from datasets import Dataset

    sign = -1 if name == "position_ids" else 1
    if not isinstance(dataset, Dataset):
        return bool((sign * np.diff(np.asarray(next(iter(dataset))[name])) > 0).any())
    for batch in dataset.select_columns([name]).with_format("arrow").iter(batch_size=10_000):
        column = batch.column(name).combine_chunks()
        steps = sign * np.diff(column.flatten().to_numpy(zero_copy_only=False))
        lengths = _row_lengths({name: column})
        steps[np.cumsum(lengths[lengths > 0])[:-1] - 1] = 0  # between rows
        if (steps > 0).any():
            return True
    return False


def _lengths(dataset: Any) -> np.ndarray[Any, Any]:
    """Tokens of each row, read column-wise."""
    import numpy as np

    batches = dataset.with_format("arrow").iter(batch_size=10_000)
    parts = [_row_lengths({name: batch.column(name).combine_chunks() for name in batch.column_names}) for batch in batches]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _truncates(strategy: str) -> bool:
    """Whether documents longer than a row lose their end: `bfd` does, but in TRL 0.27 and 0.28 it splits them."""
    import trl
    from packaging.version import Version

    return strategy == "bfd" and not Version("0.27") <= Version(trl.__version__) < Version("0.29")


def _has_tokens(example: Mapping[str, Any]) -> bool:
    return len(example["input_ids"]) > 0


def _note_cuts(batch: Mapping[str, Any], what: str, seq_length: int) -> dict[str, Any]:
    import numpy as np

    lengths = np.array([len(tokens) for tokens in batch["input_ids"]])
    if (lengths > seq_length).any():
        _warn_of_cuts(what, lengths, seq_length)
    return {}


def _warn_of_cuts(what: str, lengths: np.ndarray[Any, Any], seq_length: int) -> None:
    import numpy as np

    warnings.warn(
        f"{what} cuts {int((lengths > seq_length).sum())} of {len(lengths)} documents to max_length={seq_length}: "
        f"{int(lengths.sum())} tokens in, {int(np.minimum(lengths, seq_length).sum())} out. To keep them, raise max_length"
        + (", or use packing_strategy='bfd_split' where TRL has it" if what == "packing" else ""),
        PackingWarning,
        stacklevel=3,
    )
