"""transformers.modeling_utils: models are isolated as they are built."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, at_start

PATCHES = (
    Patch(
        name="transformers.isolation.post_init",
        target="transformers.modeling_utils:PreTrainedModel.post_init",
        versions={"transformers": ">=4.57"},
        reason=(
            "Recurrent mixers and some attention masks carry state from one packed document into the next in every release. "
            "Every model passes here when its modules are complete, so here documents are kept apart, or packing refused."
        ),
        edits=[at_start("from patchwork.packing.isolation import adopt\nadopt(self)")],
        cases=[
            Case(
                before='def post_init(self):\n    """Doc."""\n    self.init_weights()\n',
                after=(
                    'def post_init(self):\n    """Doc."""\n    from patchwork.packing.isolation import adopt\n    adopt(self)\n'
                    "    self.init_weights()\n"
                ),
            )
        ],
    ),
)
