"""trl.trainer.sft_trainer: packed batches say where documents begin."""

from __future__ import annotations

import textwrap

from patchwork.engine.patch import Case, Patch, at_start, one_of, required

_PACKED = """
if self.padding_free:
    output["position_ids"] = pad($$$PADDING)
    output["labels"][output["position_ids"] == 0] = -100
else:
    $$$OTHERWISE
"""
_SAYING_SO = """
if self.padding_free:
    output["position_ids"] = pad($$$PADDING)
    output["labels"][output["position_ids"] == 0] = -100
    from patchwork.packing.collate import boundary_arguments
    output.update(boundary_arguments(examples, output["position_ids"]))
else:
    $$$OTHERWISE
"""
_REFUSE = """
from patchwork.packing.guard import refuse_unmarked_rows
refuse_unmarked_rows(self, args, dataset, packing)
"""


def _torch_call(block: str) -> str:
    """The collator's method, reduced to its packed block."""
    filled = block.replace("$$$PADDING", "position_ids, padding_value=0").replace("$$$OTHERWISE", "output.clear()")
    return "def torch_call(self, examples):\n" + textwrap.indent(filled.strip() + "\nreturn output\n", "    ")


PATCHES = (
    Patch(
        name="trl.sft.collator",
        target="trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call",
        versions={"trl": ">=0.23.1"},
        reason=(
            "Before 1.16.0 a packed batch carries position_ids alone, whatever the attention implementation, and each padding "
            "token looks like a document. The lengths of the documents are known here, so the batch says them."
        ),
        edits=[required(_PACKED).replace(_SAYING_SO)],
        fixed_when='output["seq_idx"] = $SEQ_IDX',
        cases=[
            Case(before=_torch_call(_PACKED), after=_torch_call(_SAYING_SO)),
            Case(untouched=_torch_call(_PACKED.replace("= -100", '= -100\n    output["seq_idx"] = boundaries'))),
        ],
    ),
    Patch(
        name="trl.sft.preparation",
        target="trl.trainer.sft_trainer:SFTTrainer._prepare_dataset",
        versions={"trl": ">=0.19"},
        reason=(
            "Some packed rows reach the model without a word about their documents: those of `wrapped` packing, of packing for "
            "evaluation only, of a dataset packed before, and all before 0.23.1. They are refused before the first step."
        ),
        edits=[at_start(_REFUSE)],
    ),
    Patch(
        name="trl.sft_warning.attention",
        target="trl.trainer.sft_trainer:SFTTrainer.__init__",
        versions={"trl": ">=0.23.1,<1.16"},
        reason=(
            "The trainer warns that packing contaminates without flash attention. With patchwork it does not: documents are kept "
            "apart on every attention implementation, or the packed row is refused."
        ),
        edits=[
            one_of(
                required(
                    'if args.packing and args.packing_strategy == "bfd" and not use_flash_attention:\n    logger.warning($TEXT)'
                ).remove(),
                required(
                    'if args.packing and args.packing_strategy in {"bfd", "bfd_split"} and not use_flash_attention:\n'
                    "    logger.warning($TEXT)"
                ).remove(),
            )
        ],
    ),
)
