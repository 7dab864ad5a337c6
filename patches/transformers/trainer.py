"""transformers.trainer: a model that was built before apply() is isolated when a trainer gets it."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, at_start, required

_EXPECT = "from patchwork.packing.trainers import boundaries_expected\nboundaries_expected(self, inputs)"
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
            "What a batch says of its documents is lost where a loss of one's own hands on its tokens alone, or a collator of "
            "one's own forgets it, and nothing tells. Each batch passes here before the loss."
        ),
        edits=[required("inputs = self._prepare_input(inputs)").insert_after(_EXPECT)],
        cases=[
            Case(
                before="def _prepare_inputs(self, inputs):\n    inputs = self._prepare_input(inputs)\n    return inputs\n",
                after=(
                    "def _prepare_inputs(self, inputs):\n    inputs = self._prepare_input(inputs)\n"
                    "    from patchwork.packing.trainers import boundaries_expected\n"
                    "    boundaries_expected(self, inputs)\n    return inputs\n"
                ),
            )
        ],
    ),
)
