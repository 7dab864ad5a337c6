"""peft.peft_model: packed rows are refused where the adapter does not work on each token alone."""

from __future__ import annotations

from patchwork import Case, Patch, at_start

_REFUSE = "from patchwork.packing.hooks import refuse_adapters\nrefuse_adapters(self, locals())"


def _patch(task: str) -> Patch:
    return Patch(
        name=f"peft.adapters.{task}",
        target=f"peft.peft_model:PeftModelFor{task}.forward",
        versions={"peft": ">=0.17"},
        reason=(
            "Prompts are put before the row, and position_ids are dropped with a warning, so the model inside sees one document. "
            "What an adapter is given row by row is put on the layers here, and stays there if the model inside raises. "
            "https://huggingface.co/docs/peft/package_reference/peft_model"
        ),
        edits=[at_start(_REFUSE)],
        cases=[
            Case(
                before="def forward(self, input_ids=None, **kwargs):\n    return self.base_model(input_ids)\n",
                after=(
                    "def forward(self, input_ids=None, **kwargs):\n    from patchwork.packing.hooks import refuse_adapters\n"
                    "    refuse_adapters(self, locals())\n    return self.base_model(input_ids)\n"
                ),
            )
        ],
    )


PATCHES = (_patch("CausalLM"), _patch("TokenClassification"), _patch("FeatureExtraction"))
