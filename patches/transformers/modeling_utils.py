"""transformers.modeling_utils: models are isolated as they are built, and what checkpoints their layers carries documents."""

from __future__ import annotations

from patchwork import Case, Patch, at_start

_CARRY = "from patchwork.packing.hooks import carrying\ngradient_checkpointing_func = carrying(gradient_checkpointing_func)"
_SET = "def _set_gradient_checkpointing(self, enable=True, gradient_checkpointing_func=None):\n    {}self.func = enable\n"

PATCHES = (
    Patch(
        name="transformers.isolation.post_init",
        target="transformers.modeling_utils:PreTrainedModel.post_init",
        versions={"transformers": ">=4.57"},
        reason=(
            "Recurrent mixers and some attention masks carry state from one packed document into the next in every release. "
            "Every model passes here when its modules are complete, so here documents are kept apart, or packing refused."
        ),
        edits=[at_start("from patchwork.packing.hooks import adopt\nadopt(self)")],
        cases=[
            Case(
                before='def post_init(self):\n    """Doc."""\n    self.init_weights()\n',
                after=(
                    'def post_init(self):\n    """Doc."""\n    from patchwork.packing.hooks import adopt\n    adopt(self)\n'
                    "    self.init_weights()\n"
                ),
            )
        ],
    ),
    Patch(
        name="transformers.isolation.checkpointing",
        target="transformers.modeling_utils:PreTrainedModel._set_gradient_checkpointing",
        versions={"transformers": ">=4.57"},
        reason=(
            "A checkpointed layer runs again in the backward pass, when the packed call and its documents are gone. torch's own "
            "checkpoint carries them; a function that somebody put in its place (unsloth's offloading one) is given here."
        ),
        edits=[at_start(_CARRY)],
        cases=[Case(before=_SET.format(""), after=_SET.format(_CARRY.replace("\n", "\n    ") + "\n    "))],
    ),
)
