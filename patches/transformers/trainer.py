"""transformers.trainer: its model is isolated, its batches say where documents begin, and no call forgets it."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, at_start, required

_TELL = "from patchwork.packing.told import told_of\ntold_of(inputs)"
_WATCH = "from patchwork.packing.watched import Watched\ndata_collator = Watched(data_collator)"
_ADOPT = "from patchwork.packing.guard import adopt_model\nadopt_model(model)"

PATCHES = (
    Patch(
        name="transformers.isolation.trainer",
        target="transformers.trainer:Trainer.__init__",
        versions={"transformers": ">=4.57"},
        reason=(
            "A model built before patchwork.apply() did not pass where models are isolated as they are built. Every trainer, "
            "TRL's too, is given its model here, before the first step."
        ),
        edits=[at_start(_ADOPT)],
        cases=[
            Case(
                before="def __init__(self, model=None):\n    self.model = model\n",
                after=(
                    "def __init__(self, model=None):\n    from patchwork.packing.guard import adopt_model\n"
                    "    adopt_model(model)\n    self.model = model\n"
                ),
            )
        ],
    ),
    Patch(
        name="transformers.isolation.batches",
        target="transformers.trainer:Trainer._prepare_inputs",
        versions={"transformers": ">=4.57"},
        reason=(
            "What a batch says of its documents is lost where a loss of one's own hands on its tokens alone, and nothing tells. "
            "Each batch passes here before the loss."
        ),
        edits=[required("inputs = self._prepare_input(inputs)").insert_after(_TELL)],
        cases=[
            Case(
                before="def _prepare_inputs(self, inputs):\n    inputs = self._prepare_input(inputs)\n    return inputs\n",
                after=(
                    "def _prepare_inputs(self, inputs):\n    inputs = self._prepare_input(inputs)\n"
                    "    from patchwork.packing.told import told_of\n"
                    "    told_of(inputs)\n    return inputs\n"
                ),
            )
        ],
    ),
    Patch(
        name="transformers.isolation.loaders",
        target="transformers.trainer:Trainer._get_dataloader",
        versions={"transformers": ">=4.57"},
        reason=(
            "A collator of one's own may forget the documents of packed rows, and one in a loader's worker that was spawned is "
            "not patched. What it makes is compared with what it was given, and such a worker applies these patches, too."
        ),
        edits=[required("dataloader_params = $PARAMS").insert_before(_WATCH)],
        cases=[
            Case(
                before="def _get_dataloader(self):\n    dataloader_params = {'a': 1}\n    return dataloader_params\n",
                after=(
                    "def _get_dataloader(self):\n    from patchwork.packing.watched import Watched\n"
                    "    data_collator = Watched(data_collator)\n    dataloader_params = {'a': 1}\n    return dataloader_params\n"
                ),
            )
        ],
    ),
)
