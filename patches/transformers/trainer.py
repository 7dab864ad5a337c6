"""transformers.trainer: a model that was built before apply() is isolated when a trainer gets it."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, at_start

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
)
