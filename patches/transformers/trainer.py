"""transformers.trainer and trainer_utils: a trainer's models are isolated, and no batch or call loses its documents."""

from __future__ import annotations

from patchwork import Case, Patch, at_start, required

_PREPARED = "from patchwork.packing.hooks import batch_prepared\nbatch_prepared(self, inputs)"
_STEP = "from patchwork.packing.hooks import in_step"
_WATCH = "from patchwork.workers import watched\ndata_collator = watched(data_collator)"
_ADOPT = "from patchwork.packing.hooks import adopt_model\nadopt_model(model)"
_REFUSE = "from patchwork.packing.hooks import refuse_dropped\nrefuse_dropped({columns}, {kept})"
_OF_DATASET = _REFUSE.format(columns="dataset", kept="signature_columns")
_OF_EXAMPLE = _REFUSE.format(columns="feature", kept="self.signature_columns")
_DROPPED = (
    "A dataset that was packed before holds the lengths of its documents in seq_lengths. No model takes that column, so a "
    "Trainer drops it, and each row is trained on as one document."
)
_COLUMNS = "columns = [k for k in signature_columns if k in dataset.column_names]"
_KEPT = "return {k: v for k, v in feature.items() if k in self.signature_columns}"


def _stepping(name: str, target: str, method: str, versions: str) -> Patch:
    """Where a loop calls the trainer's method for one batch, what that says of documents is kept for as long as it runs."""
    return Patch(
        name=f"transformers.steps.{name}",
        target=f"transformers.trainer:Trainer.{target}",
        versions={"transformers": versions},
        reason=(
            "What a batch says of its documents concerns the calls of its own step. Callbacks and metrics run after it, and may "
            "call the model with anything."
        ),
        edits=[at_start(_STEP), required(f"self.{method}($$$ARGS)").replace(f"in_step(self.{method}, $$$ARGS)")],
        cases=[
            Case(
                before=f"def {target}(self, model):\n    return self.{method}(model, a=1)\n",
                after=f"def {target}(self, model):\n    {_STEP}\n    return in_step(self.{method}, model, a=1)\n",
            )
        ],
    )


def _column_case(head: str, refuse: str, last: str) -> Case:
    inserted = "".join(f"    {line}\n" for line in refuse.splitlines())
    return Case(before=f"{head}\n    {last}\n", after=f"{head}\n{inserted}    {last}\n")


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
                    "def __init__(self, model=None):\n    from patchwork.packing.hooks import adopt_model\n"
                    "    adopt_model(model)\n    self.model = model\n"
                ),
            )
        ],
    ),
    Patch(
        name="transformers.isolation.model_init",
        target="transformers.trainer:Trainer.call_model_init",
        versions={"transformers": ">=4.57"},
        reason=(
            "A model_init may return a model that was built before patchwork.apply(), or a copy of one, at each trial of a "
            "hyperparameter search anew."
        ),
        edits=[required("return model").insert_before(_ADOPT)],
        cases=[
            Case(
                before="def call_model_init(self, trial=None):\n    model = self.model_init()\n    return model\n",
                after=(
                    "def call_model_init(self, trial=None):\n    model = self.model_init()\n"
                    "    from patchwork.packing.hooks import adopt_model\n    adopt_model(model)\n    return model\n"
                ),
            )
        ],
    ),
    Patch(
        name="transformers.isolation.batches",
        target="transformers.trainer:Trainer._prepare_inputs",
        versions={"transformers": ">=4.57"},
        reason=(
            "What a batch says of its documents is lost where a loss of one's own hands on its tokens alone, and a model that "
            "was put into the trainer later may not be isolated. Each batch passes here before the loss."
        ),
        edits=[required("inputs = self._prepare_input(inputs)").insert_after(_PREPARED)],
        cases=[
            Case(
                before="def _prepare_inputs(self, inputs):\n    inputs = self._prepare_input(inputs)\n    return inputs\n",
                after=(
                    "def _prepare_inputs(self, inputs):\n    inputs = self._prepare_input(inputs)\n"
                    "    from patchwork.packing.hooks import batch_prepared\n"
                    "    batch_prepared(self, inputs)\n    return inputs\n"
                ),
            )
        ],
    ),
    _stepping("training", "_run_epoch", "training_step", ">=5.3"),
    _stepping("training_of_old", "_inner_training_loop", "training_step", ">=4.57,<5.3"),
    _stepping("evaluation", "evaluation_loop", "prediction_step", ">=4.57"),
    _stepping("evaluation_of_old", "prediction_loop", "prediction_step", ">=4.57,<5"),
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
                    "def _get_dataloader(self):\n    from patchwork.workers import watched\n"
                    "    data_collator = watched(data_collator)\n    dataloader_params = {'a': 1}\n    return dataloader_params\n"
                ),
            )
        ],
    ),
    Patch(
        name="transformers.unused_columns.dataset",
        target="transformers.trainer:Trainer._remove_unused_columns",
        versions={"transformers": ">=4.57"},
        reason=_DROPPED,
        edits=[required(_COLUMNS.replace("k ", "$NAME ")).insert_before(_OF_DATASET)],
        cases=[_column_case("def _remove_unused_columns(self, dataset):", _OF_DATASET, _COLUMNS)],
    ),
    Patch(
        name="transformers.unused_columns.stream",
        target="transformers.trainer_utils:RemoveColumnsCollator._remove_columns",
        versions={"transformers": ">=4.57"},
        reason=_DROPPED,
        edits=[required(_KEPT).insert_before(_OF_EXAMPLE)],
        cases=[_column_case("def _remove_columns(self, feature):", _OF_EXAMPLE, _KEPT)],
    ),
)
