"""Prepares the examples of a collator and completes its batch, so that a flattened batch says where its documents begin."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..boundaries import Boundaries
from ..errors import BoundariesError, IsolationError
from .dataset_packing import is_list, packed_row
from .dataset_rows import BESIDE, SAYING, documents_of, holds_several

# Columns of one entry for each token.
PER_TOKEN = ("input_ids", "labels", "completion_mask", "assistant_masks")
# Set on the collator that SFTTrainer makes for itself.
_FLATTENS = "_patchwork_flattens_packed_rows"
# The switches of transformers' flattening collator that add boundaries to its batch.
_MARKS = ("return_position_ids", "return_flash_attn_kwargs", "return_seq_idx")


def flattening(collator: Any, examples: Sequence[Mapping[str, Any]]) -> tuple[Any, Sequence[Mapping[str, Any]]]:
    """The collator and the examples of a batch, as they are or ready to be flattened.

    A collator with `padding_free=False` keeps its examples and the shape of its batch, except SFTTrainer's own
    (`flattens_packed_rows`): that flattens a batch in which an example says that it is packed, such as rows for evaluation under
    `packing=False, eval_packing=True`, and is replaced by a copy that is padding-free. To be flattened, each example gets its
    `seq_lengths` (one document where it had none), empty documents and examples are left out, arrays and tensors become lists,
    and a single document is truncated to the `max_length` of a collator that has one (TRL 1.0 to 1.7).

    A flattened batch has the keys of TRL's, with its values, and those of `boundary_arguments` that the release does not give
    by itself. Padding at its end (`pad_to_multiple_of`) is one document more, which `attention_mask` leaves out.

    Raises IsolationError for an example of several documents where padding is kept. Raises BoundariesError, naming the example,
    for lengths that do not sum to its tokens, columns that are not as long as its `input_ids`, examples that do not have the
    same columns, and a batch without any token.
    """
    if not collator.padding_free:
        if not getattr(collator, _FLATTENS, False):
            _refuse_several(collator, examples)
            return collator, examples
        if not any(documents_of(example) for example in examples):
            return collator, examples
        collator = copy.copy(collator)
        collator.padding_free = True
    limit = getattr(collator, "max_length", None)
    keep_end = getattr(collator, "truncation_mode", "") == "keep_end"
    made = _ready(examples, PER_TOKEN, limit and (slice(-limit, None) if keep_end else slice(None, limit)))
    return collator, [example for example in made if example["seq_lengths"]]


def flattens_packed_rows(collator: Any) -> None:
    """Marks the collator that SFTTrainer makes for itself: it flattens batches of packed rows, whatever `padding_free` is."""
    setattr(collator, _FLATTENS, True)


def _refuse_several(collator: Any, examples: Sequence[Mapping[str, Any]]) -> None:
    """Raises IsolationError for an example of several documents, which a padded batch would train as one."""
    for number, example in enumerate(examples):
        if holds_several(example):
            columns = ", ".join(name for name in SAYING if example.get(name) is not None)
            raise IsolationError(
                f"example {number} holds several documents (by its {columns}), but {type(collator).__name__} with "
                "padding_free=False makes one document of each row, so documents would leak: make the collator with "
                "padding_free=True, or let SFTTrainer make its own"
            )


def documents_to_flatten(collator: Any, features: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The documents of a batch, one feature each, as transformers' `DataCollatorWithFlattening` lays them end to end.

    Made ready as by `flattening`; a feature that was packed before (`seq_lengths`) is cut into its documents, since the
    collator counts each feature as one.

    Raises BoundariesError as `flattening` does, and IsolationError where several documents would make a row that says nothing
    of them.
    """
    documents = []
    for feature in _ready(features, ("input_ids", "labels"), None):
        ends = list(itertools.accumulate(feature["seq_lengths"], initial=0))
        for begin, end in itertools.pairwise(ends):
            documents.append({name: value[begin:end] if name in PER_TOKEN else value for name, value in feature.items()})
    if len(documents) > 1 and not any(getattr(collator, name, False) for name in _MARKS):
        raise IsolationError(
            f"{type(collator).__name__} would lay {len(documents)} documents end to end and say nothing of where they begin, so "
            f"they would leak: set one of {', '.join(_MARKS)} to True"
        )
    return documents


def _ready(examples: Sequence[Mapping[str, Any]], known: Sequence[str], part: slice | None) -> list[dict[str, Any]]:
    """Each example with lists in its columns, and the lengths of the documents that it holds. `part`: what is kept of one
    that does not say that it is packed."""
    columns = [name for name in known if any(example.get(name) is not None for example in examples)]
    made = [_example(number, example, columns, part) for number, example in enumerate(examples)]
    if not any(example["seq_lengths"] for example in made):
        raise BoundariesError(
            f"none of the {len(examples)} examples of this batch holds a token: drop empty rows from the dataset"
        )
    return made


def _example(number: int, example: Mapping[str, Any], columns: Sequence[str], part: slice | None) -> dict[str, Any]:
    lists = {name: _list(number, name, example.get(name)) for name in columns}
    tokens = len(lists.get("input_ids", ()))
    for name, values in lists.items():
        if len(values) != tokens:
            raise BoundariesError(f"example {number} has {tokens} input_ids and {len(values)} {name}: give one for each token")
    said = documents_of(example)
    example = {name: value for name, value in example.items() if name not in SAYING}
    if said is None:
        lists = {name: values if part is None else values[part] for name, values in lists.items()}
        tokens = len(lists.get("input_ids", ()))
        return {**example, **lists, "seq_lengths": [tokens] if tokens else []}
    if not all(isinstance(length, int) for length in said):
        raise BoundariesError(f"seq_lengths of example {number} are {said[:8]}: give whole numbers")
    lengths = [length for length in said if length]
    if (lengths and min(lengths) < 0) or sum(lengths) != tokens:
        raise BoundariesError(
            f"seq_lengths of example {number} are {lengths[:8]}, which sum to {sum(lengths)}, but it has {tokens} tokens: "
            "give the length of each document of the row"
        )
    return {**example, **lists, "seq_lengths": lengths}


def _list(number: int, name: str, values: Any) -> list[int]:
    if values is None:
        raise BoundariesError(f"example {number} has no {name}, others of this batch have: give it to all or to none")
    if getattr(values, "ndim", 1) != 1:
        raise BoundariesError(f"{name} of example {number} has shape {tuple(values.shape)}: give one row, 1-D")
    values = values.tolist() if hasattr(values, "tolist") else values
    return [values] if isinstance(values, int) else list(values)


def boundary_arguments(examples: Sequence[Mapping[str, Any]], row: Any) -> dict[str, Any]:
    """The boundary arguments of examples, each with its `seq_lengths`, that were flattened into `row`, `(1, T)`.

    What T exceeds the documents by is padding, and one tail. Returns what `Boundaries.model_kwargs` does: `position_ids`,
    int64 `(1, T)`; `seq_idx`, int32 `(1, T)`; `cu_seq_lens_q` and `cu_seq_lens_k`, int32 `(segments + 1,)`; `max_length_q`
    and `max_length_k`, ints. With a tail also `attention_mask`, int64 `(1, T)`, 0 there: the auxiliary loss of routers leaves
    out what a mask does, and nothing else. Raises BoundariesError for lengths that do not fit into T.
    """
    lengths = [length for example in examples for length in example["seq_lengths"]]
    boundaries = Boundaries.from_seq_lens(lengths, total=row.shape[1], device=row.device)
    told = boundaries.model_kwargs()
    if (tokens := sum(lengths)) < boundaries.row_length:
        told["attention_mask"] = row.new_zeros(row.shape, dtype=told["position_ids"].dtype)
        told["attention_mask"][:, :tokens] = 1
    return told


def places_in(examples: Sequence[Mapping[str, Any]], row: Any) -> dict[str, Any]:
    """Of `boundary_arguments`, what a collator that knows boundaries (TRL 1.16) derives them from: `position_ids`, and
    `attention_mask` where there is a tail."""
    told = boundary_arguments(examples, row)
    return {name: told[name] for name in ("position_ids", "attention_mask") if name in told}


def refuse_dropped(rows: Any, kept: Collection[str] | None) -> None:
    """Called where a Trainer drops the columns that its model does not take. Raises IsolationError if a dropped column shows
    that rows are packed, since each row would be trained on as one document.

    `rows`: an example, or a dataset; `kept`: the names that stay.
    """
    of_dataset = not isinstance(rows, Mapping)
    columns = rows.column_names if of_dataset else rows
    names = [name for name in SAYING if name in columns and name not in (kept or ())]
    if of_dataset:
        names = [name for name in names if is_list(rows, name, columns)]
        packed = bool(names) and packed_row(rows, names) is not None
    else:
        packed = bool(names) and holds_several({name: rows[name] for name in (*names, *BESIDE) if name in rows})
    if packed:
        raise IsolationError(
            f"the dataset is packed (it has {', '.join(names)}), and that column would be dropped as one that the model does not "
            "take, so documents would leak: set remove_unused_columns=False and use DataCollatorWithFlattening, or give documents"
        )
