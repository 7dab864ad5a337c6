"""trl.trainer.sft_trainer: what is packed says where documents begin, on every path, or is not packed."""

from __future__ import annotations

from patchwork import Case, Patch, at_start, one_of, required

_COLLATOR = "trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call"
_INIT = "trl.trainer.sft_trainer:SFTTrainer.__init__"
_PREPARE = "trl.trainer.sft_trainer:SFTTrainer._prepare_dataset"

_FLATTEN = "from patchwork.packing.hooks import flattening, places_in\nself, examples = flattening(self, examples)"
_POSITIONS_ALONE = """
if self.padding_free:
    output["position_ids"] = pad($$$PADDING)
    output["labels"][output["position_ids"] == 0] = -100
else:
    $$$OTHERWISE
"""
_MASKED = 'output["labels"][output["position_ids"] == 0] = -100'
_WARNED = 'if args.packing and args.packing_strategy == "bfd" and not use_flash_attention:\n    logger.warning($TEXT)'
_UNCOUNTED = (
    "Where packing was refused, padded rows lose the tokens of long documents that packing might have kept, without a word. And "
    "rows that came packed are cut, their lengths are not."
)
_COUNT = "from patchwork.packing.hooks import before_truncation, is_packed\ndataset = before_truncation(args, dataset, packing)"
_TRUNCATED = "truncate_dataset(dataset, args.max_length, map_kwargs)"
# Where rows are truncated that are not packed; from 1.0 to 1.7 in the collator, after packing was left out here.
_UNPACKED = "args.max_length is not None and not packing"
_TRUNCATIONS = {
    ("trl.sft.cuts", ">=1.8"): (
        required(f"if {_UNPACKED}:\n    $$$CUT").insert_before(_COUNT),
        required(_UNPACKED).replace("args.max_length is not None and not (packing or is_packed(dataset))"),
    ),
    ("trl.sft.cuts_in_collator", ">=1.0,<1.8"): (
        required("if packing:\n    if args.max_length is None:\n        raise $E\n    $$$PACK").insert_before(_COUNT),
    ),
    ("trl.sft.cuts_of_old", ">=0.22.2,<1.0"): (
        required(f"dataset = {_TRUNCATED}").insert_before(_COUNT),
        required(_TRUNCATED).replace(f"dataset if is_packed(dataset) else {_TRUNCATED}"),
    ),
}


def _torch_call(*lines: str) -> str:
    """The collator's method, reduced to what is edited."""
    body = "\n    ".join(lines)
    return f"def torch_call(self, examples):\n    {body}\n    return output\n"


PATCHES = (
    Patch(
        name="trl.sft.examples",
        target=_COLLATOR,
        versions={"trl": ">=0.23.1"},
        reason=(
            "Rows that are packed for evaluation only get a mask of ones; empty documents make a boundary vanish; rows that "
            "disagree on seq_lengths lose theirs; each padding token becomes a document, and routers count it. So examples are "
            "put in order first."
        ),
        edits=[
            at_start(_FLATTEN),
            required(_MASKED).insert_before('output.update(places_in(examples, output["input_ids"]))'),
        ],
        cases=[
            Case(
                before=_torch_call("flattened()", _MASKED),
                after=_torch_call(
                    *_FLATTEN.splitlines(),
                    "flattened()",
                    'output.update(places_in(examples, output["input_ids"]))',
                    _MASKED,
                ),
            )
        ],
    ),
    Patch(
        name="trl.sft.collator",
        target=_COLLATOR,
        versions={"trl": ">=0.23.1"},
        reason=(
            "Before 1.16.0 a packed batch carries position_ids alone, whatever the attention implementation. The lengths of the "
            "documents are known here, so the batch says them under the names that upstream knows."
        ),
        edits=[
            required(_POSITIONS_ALONE).insert_after(
                "if self.padding_free:\n"
                "    from patchwork.packing.hooks import boundary_arguments\n"
                '    output.update(boundary_arguments(examples, output["input_ids"]))'
            )
        ],
        fixed_when='output["seq_idx"] = $SEQ_IDX',
    ),
    Patch(
        name="trl.sft.collator_of_old",
        target=_COLLATOR,
        versions={"trl": ">=0.22.2,<0.23.1"},
        reason=(
            "Before 0.23.1 a packed batch has a mask of ones, no positions unless attention is flash, and labels that predict "
            "the first token of the next document."
        ),
        edits=[
            at_start(_FLATTEN.replace("places_in", "boundary_arguments")),
            required('output["labels"] = pad($$$LABELS)').insert_after(
                "if self.padding_free:\n"
                '    output.pop("attention_mask", None)\n'
                '    output.update(boundary_arguments(examples, output["input_ids"]))\n'
                f"    {_MASKED}"
            ),
        ],
    ),
    Patch(
        name="trl.sft.guard",
        target=_INIT,
        versions={"trl": ">=0.22.2"},
        reason=(
            "Whether a model can be packed is asked before its data is prepared, of its name as it will be loaded and again of "
            "the model. Packed rows of every strategy, `wrapped` and `bfd-requeue` too, are flattened with their boundaries, "
            "by the trainer's own collator also where it pads the others."
        ),
        edits=[
            at_start(
                "from patchwork.packing.hooks import confirmed, guarded\n_patchwork_model = model\nargs = guarded(self, locals())"
            ),
            required(
                "if isinstance(processing_class, ProcessorMixin):\n    $$$THEN\nelif $PLAIN:\n    $$$ELSE\nelse:\n    raise $E"
            ).insert_before("args = confirmed(self, args, model, _patchwork_model)"),
            required("self.padding_free = args.padding_free or (args.packing and $STRATEGY)").replace(
                "self.padding_free = args.padding_free or args.packing"
            ),
            required('if args.packing and args.packing_strategy == "wrapped":\n    logger.warning($TEXT)').remove(),
            required("data_collator = DataCollatorForLanguageModeling($$$SETTINGS)").insert_after(
                "from patchwork.packing.hooks import flattens_packed_rows\nflattens_packed_rows(data_collator)"
            ),
        ],
    ),
    Patch(
        name="trl.sft.text_of_processors.old",
        target=_INIT,
        versions={"trl": ">=0.22.2,<1.0"},
        reason=(
            "Before 1.10 whoever has a processor is refused packing, for text too. Before 0.24 it is taken to train on pictures, "
            "and before 1.0 its preparation takes what a processor makes of one text for a batch: so the tokenizer does it."
        ),
        edits=[
            at_start("from patchwork.packing.hooks import text_side"),
            required("if processing_class is None:\n    $$$LOAD").insert_after(
                "processing_class = text_side(processing_class, args, train_dataset)"
            ),
        ],
    ),
    Patch(
        name="trl.sft.text_of_processors",
        target=_INIT,
        versions={"trl": ">=1.0,<1.10"},
        reason="Before 1.10 whoever has a processor is refused packing, for text too.",
        edits=[
            at_start("from patchwork.packing.hooks import has_pictures"),
            required("self._is_vlm and args.packing").replace("self._is_vlm and args.packing and has_pictures(train_dataset)"),
            required("self._is_vlm and args.padding_free").replace(
                "self._is_vlm and args.padding_free and has_pictures(train_dataset)"
            ),
        ],
    ),
    Patch(
        name="trl.sft.evaluation_rows",
        target=_INIT,
        versions={"trl": ">=1.0,<1.8"},
        reason="With packing=True and eval_packing=False rows for evaluation are as long as they come: nobody truncates them.",
        edits=[
            required(
                "DataCollatorForLanguageModeling($$$_, max_length=None if self.padding_free else args.max_length)"
            ).set_argument(
                "max_length",
                "args.max_length if not self.padding_free or (args.packing and not (args.dataset_kwargs or {}).get("
                "'skip_prepare_dataset')) else None",
            )
        ],
    ),
    Patch(
        name="trl.sft_warning.attention",
        target=_INIT,
        versions={"trl": ">=0.22.2,<1.16"},
        reason=(
            "The trainer warns that packing contaminates without flash attention. With patchwork it does not: documents are kept "
            "apart on every attention implementation, or the packed row is refused."
        ),
        edits=[
            required("if not use_flash_attention:\n    logger.warning($TEXT)").remove(),
            one_of(
                required(_WARNED).remove(),
                required(_WARNED.replace('== "bfd"', 'in {"bfd", "bfd_split"}')).remove(),
            ),
        ],
    ),
    Patch(
        name="trl.sft.preparation",
        target=_PREPARE,
        versions={"trl": ">=0.22.2"},
        reason=(
            "Packing packs once more what is packed already, and rows that say where documents begin in another way. And rows of "
            "`wrapped` do not say where their documents begin."
        ),
        edits=[
            at_start(
                "from patchwork.packing.hooks import packer_for_training, to_pack\n"
                "dataset, packing = to_pack(self, dataset, packing)"
            ),
            required("pack_dataset(dataset, args.max_length, args.packing_strategy, map_kwargs)").replace(
                "packer_for_training(pack_dataset)(dataset, args.max_length, args.packing_strategy, map_kwargs)"
            ),
        ],
    ),
    *(
        Patch(
            name=name,
            target=_PREPARE,
            versions={"trl": releases},
            reason=_UNCOUNTED,
            edits=edits,
        )
        for (name, releases), edits in _TRUNCATIONS.items()
    ),
    Patch(
        name="trl.sft.labels",
        target=_PREPARE,
        versions={"trl": ">=0.22.2,<1.7"},
        reason="Packing, and Liger, drop the labels of a dataset that comes tokenized, so masked tokens are trained on.",
        edits=[
            required("dataset = dataset.select_columns(columns)").insert_before(
                "from patchwork.packing.hooks import columns_of\n"
                'if "labels" in columns_of(dataset):\n    columns.append("labels")'
            ),
            required('{"input_ids", "seq_lengths", "completion_mask", "assistant_masks"}').replace(
                '{"input_ids", "labels", "seq_lengths", "completion_mask", "assistant_masks"}'
            ),
        ],
    ),
    Patch(
        name="trl.sft.stream_columns",
        target=_PREPARE,
        versions={"trl": ">=0.22.2,<0.23.1"},
        reason="A stream does not know its columns before it is read, and packing one fails.",
        edits=[
            at_start("from patchwork.packing.hooks import columns_of"),
            required("dataset.column_names", at_least=1).replace("columns_of(dataset)"),
        ],
    ),
    Patch(
        name="trl.sft.denominator",
        target="trl.trainer.sft_trainer:SFTTrainer.compute_loss",
        versions={"trl": ">=0.22.2"},
        reason="A batch in which no label counts has the loss 0 / 0, and one step on it makes every weight nan.",
        edits=[
            at_start(
                "from patchwork.packing.hooks import counted\nnum_items_in_batch = counted(self, inputs, num_items_in_batch)"
            )
        ],
    ),
)
