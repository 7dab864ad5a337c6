"""transformers.data.data_collator: a row that was flattened says where its documents begin."""

from __future__ import annotations

from patchwork import Case, Patch, at_start

_READY = "from patchwork.packing.hooks import documents_to_flatten\nfeatures = documents_to_flatten(self, features)"

PATCHES = (
    Patch(
        name="transformers.flattening.collator",
        target="transformers.data.data_collator:DataCollatorWithFlattening.__call__",
        versions={"transformers": ">=4.57"},
        reason=(
            "With all of its marks off, the collator lays documents end to end and nothing says so. It counts a row that was "
            "packed before as one document, and before 5.24 gives an empty document a label, and arrays wrong ones."
        ),
        edits=[at_start(_READY)],
        cases=[
            Case(
                before="def __call__(self, features, separator_id=None):\n    return len(features)\n",
                after=(
                    "def __call__(self, features, separator_id=None):\n"
                    "    from patchwork.packing.hooks import documents_to_flatten\n"
                    "    features = documents_to_flatten(self, features)\n    return len(features)\n"
                ),
            )
        ],
    ),
)
