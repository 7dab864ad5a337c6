"""trl.trainer.dpo_trainer: `padding_free=True` is exact, and works where it was given up."""

from __future__ import annotations

from patchwork.engine.patch import Case, Patch, required

_GIVEN_UP = """
self.padding_free = args.padding_free
if self.padding_free:
    logger.warning($TEXT)
    self.padding_free = False
"""
_DECIDED = """
from patchwork.packing.preference import padding_free
self.padding_free = padding_free(args, model, ref_model)
"""
_SWITCHED = """
from patchwork.packing.preference import without_padding
without_padding(self.padding_free, self.model, self.ref_model)
"""
_TAGS = "self.model.add_model_tags(self._tag_names)"
_FLATTENS = """
from patchwork.packing.preference import flattens
self.padding_free = flattens(args, model, self.ref_model)
"""
_ATTENTION = 'if model.config._attn_implementation != "flash_attention_2":\n    logger.warning($TEXT)'


def _init(*blocks: str) -> str:
    body = "".join(f"    {line}\n" for block in blocks for line in block.strip().replace("$TEXT", '"text"').splitlines())
    return f"def __init__(self, model, ref_model, args):\n{body}"


PATCHES = (
    Patch(
        name="trl.dpo.padding_free",
        target="trl.trainer.dpo_trainer:DPOTrainer.__init__",
        versions={"trl": ">=0.29"},
        reason=(
            "Since 0.29 `padding_free=True` is switched off with a warning. Here the backbones of policy and reference take the "
            "padding out themselves and put it back behind them, so that each loss sees the padded batch that it knows."
        ),
        edits=[required(_GIVEN_UP).replace(_DECIDED), required(_TAGS).insert_after(_SWITCHED)],
        cases=[Case(before=_init(_GIVEN_UP, _TAGS), after=_init(_DECIDED, _TAGS, _SWITCHED))],
    ),
    Patch(
        name="trl.dpo.flattening",
        target="trl.trainer.dpo_trainer:DPOTrainer.__init__",
        versions={"trl": ">=0.22,<0.29"},
        reason=(
            "The trainer flattens its batches and says so with positions alone; its losses that count over rows (ipo, sft, rpo, "
            "ld_alpha, weighting, logits_to_keep, Liger) take the flat row for one example. Those get padded batches, and the "
            "backbones leave the padding out. The warning about attention goes: documents are kept apart on any."
        ),
        edits=[
            required(_ATTENTION, inside="if args.padding_free:").remove(),
            required("self.padding_free = args.padding_free").replace(_FLATTENS),
        ],
    ),
)
