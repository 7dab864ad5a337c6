"""trl.trainer.dpo_trainer: `padding_free=True` is exact, and works where it was given up."""

from __future__ import annotations

from patchwork import Case, Patch, at_start, optional, required

_GIVEN_UP = """
self.padding_free = args.padding_free
if self.padding_free:
    logger.warning($TEXT)
    self.padding_free = False
"""
_DECIDED = """
from patchwork.packing.hooks import padding_free
self.padding_free = padding_free(args, model, ref_model)
"""
_PREPARED = """
from patchwork.packing.hooks import prepare
prepare(self, self.padding_free, self.model, self.ref_model)
"""
_TAGS = "self.model.add_model_tags(self._tag_names)"
_FLATTENS = """
from patchwork.packing.hooks import flattens
self.padding_free = flattens(self, args, model, self.ref_model)
"""
_ATTENTION = 'if model.config._attn_implementation != "flash_attention_2":\n    logger.warning($TEXT)'
_TRAINER = "trl.trainer.dpo_trainer:DPOTrainer"
_WITHOUT = "from patchwork.packing.hooks import without_padding"
_WHILE = "The models that a trainer was given compute without padding in its own losses only; elsewhere they are as they were."


def _while_it_runs(name: str, method: str, versions: str, *calls: str, rare: tuple[str, ...] = ()) -> Patch:
    """In a method the calls that run the models leave the padding out. `rare`: calls that some releases do not have."""
    made = "without_padding(self, self.{}, {})"
    edits = [
        anchor(f"self.{call}($$$ARGS)", at_least=1).replace(made.format(call, "$$$ARGS"))
        for anchor, some in ((required, calls), (optional, rare))
        for call in some
    ]
    before = ", ".join(f"self.{call}(a, b=1)" for call in calls)
    after = ", ".join(made.format(call, "a, b=1") for call in calls)
    return Patch(
        name=f"trl.dpo.{name}",
        target=f"{_TRAINER}.{method}",
        versions={"trl": versions},
        reason=_WHILE,
        edits=[at_start(_WITHOUT), *edits],
        cases=[
            Case(
                before=f"def {method}(self, a):\n    return {before}\n",
                after=f"def {method}(self, a):\n    {_WITHOUT}\n    return {after}\n",
            )
        ],
    )


def _init(*blocks: str) -> str:
    body = "".join(f"    {line}\n" for block in blocks for line in block.strip().replace("$TEXT", '"text"').splitlines())
    return f"def __init__(self, model, ref_model, args):\n{body}"


PATCHES = (
    Patch(
        name="trl.dpo.padding_free",
        target=f"{_TRAINER}.__init__",
        versions={"trl": ">=0.29"},
        reason=(
            "Since 0.29 `padding_free=True` is switched off with a warning. Here the backbones of policy and reference take the "
            "padding out themselves and put it back behind them, so that each loss sees the padded batch that it knows."
        ),
        edits=[required(_GIVEN_UP).replace(_DECIDED), required(_TAGS).insert_after(_PREPARED)],
        cases=[Case(before=_init(_GIVEN_UP, _TAGS), after=_init(_DECIDED, _TAGS, _PREPARED))],
    ),
    Patch(
        name="trl.dpo.flattening",
        target=f"{_TRAINER}.__init__",
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
    _while_it_runs("losses", "compute_loss", ">=0.29", "_compute_loss", rare=("_compute_loss_liger",)),
    _while_it_runs("references", "_precompute_ref_logps", ">=0.29", "compute_ref_log_probs"),
    _while_it_runs("losses_of_old", "get_batch_loss_metrics", ">=0.22,<0.29", "concatenated_forward", "_compute_loss_liger"),
    _while_it_runs("references_of_old", "compute_ref_log_probs", ">=0.22,<0.29", "concatenated_forward"),
)
