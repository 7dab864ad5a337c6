"""transformers.trainer and trainer_utils: the lengths of packed documents are not dropped as an unused column."""

from __future__ import annotations

from patchwork import Case, Patch, required

_REFUSE = "from patchwork.packing.hooks import refuse_dropped\nrefuse_dropped({columns}, {kept})"
_OF_DATASET = _REFUSE.format(columns="dataset", kept="signature_columns")
_OF_EXAMPLE = _REFUSE.format(columns="feature", kept="self.signature_columns")
_REASON = (
    "A dataset that was packed before holds the lengths of its documents in seq_lengths. No model takes that column, so a "
    "Trainer drops it, and each row is trained on as one document."
)


def _case(head: str, refuse: str, last: str) -> Case:
    inserted = "".join(f"    {line}\n" for line in refuse.splitlines())
    return Case(before=f"{head}\n    {last}\n", after=f"{head}\n{inserted}    {last}\n")


_COLUMNS = "columns = [k for k in signature_columns if k in dataset.column_names]"
_KEPT = "return {k: v for k, v in feature.items() if k in self.signature_columns}"

PATCHES = (
    Patch(
        name="transformers.unused_columns.dataset",
        target="transformers.trainer:Trainer._remove_unused_columns",
        versions={"transformers": ">=4.57"},
        reason=_REASON,
        edits=[required(_COLUMNS.replace("k ", "$NAME ")).insert_before(_OF_DATASET)],
        cases=[_case("def _remove_unused_columns(self, dataset):", _OF_DATASET, _COLUMNS)],
    ),
    Patch(
        name="transformers.unused_columns.stream",
        target="transformers.trainer_utils:RemoveColumnsCollator._remove_columns",
        versions={"transformers": ">=4.57"},
        reason=_REASON,
        edits=[required(_KEPT).insert_before(_OF_EXAMPLE)],
        cases=[_case("def _remove_columns(self, feature):", _OF_EXAMPLE, _KEPT)],
    ),
)
