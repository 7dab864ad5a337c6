"""unsloth_zoo.dataset_utils: what TRL packs is not truncated before."""

from __future__ import annotations

import textwrap

from patchwork import Case, Patch, every, optional, required

# Only the definition is followed by new code: every use of `do_truncation` obeys it, and the text of the uses stays as it is.
# unsloth pastes this function into its own trainer and edits it there, line by line, at the uses and at the call that packs.
_DEFINITION = "do_truncation = max_seq_length != 0"
# `pack_dataset` becomes a local name, so the line that calls it stays as it is.
_DECIDE = (
    "from patchwork.packing.hooks import preparation\n"
    "packing, do_truncation, pack_dataset = preparation("
    'self, args, column_names, packing, max_seq_length, globals().get("pack_dataset"))'
)
_TELL = """
from patchwork.packing.hooks import with_full_documents_told
dataset = with_full_documents_told(dataset, max_seq_length, do_truncation)
"""
_CUT = "if do_truncation and max_seq_length > 0:"

_FUNCTION = """
def sft_prepare_dataset(self, dataset, processing_class, args, packing, formatting_func, dataset_name):
    max_seq_length = getattr(args, "max_length", 0)
    do_truncation = max_seq_length != 0
    column_names = set(next(iter(dataset)).keys())
{decide}    used_column_names = ["input_ids"]
    def _tokenize(example):
        return tokenizer(example["text"], truncation = do_truncation, max_length = max_seq_length)
    dataset = dataset.map(_tokenize)
    if packing:
        dataset = pack_dataset(dataset, max_seq_length, getattr(args, "packing_strategy", "bfd"), map_kwargs)
{tell}    return dataset
"""


def _indented(code: str, spaces: int) -> str:
    return textwrap.indent(code.strip(), " " * spaces) + "\n"


PATCHES = (
    Patch(
        name="unsloth_zoo.sft.preparation",
        target="unsloth_zoo.dataset_utils:sft_prepare_dataset",
        versions={"unsloth_zoo": ">=2025.8"},
        reason=(
            "It cuts each document to max_length before TRL packs, whatever the strategy, so `wrapped` and `bfd_split` lose what "
            "they are meant to keep. With these, the packer alone truncates."
        ),
        edits=[
            required(_DEFINITION),
            required('used_column_names = ["input_ids"]', after=_DEFINITION).insert_before(_DECIDE),
            # All that is known to cut documents or to read their limit. What a release adds must be looked at: it may cut, too.
            required("$CALL($$$ARGS, truncation=do_truncation, max_length=max_seq_length)"),
            optional(f"{_CUT}\n    $$$BODY"),
            optional("$TOKENS[:max_seq_length]", at_least=1, inside=_CUT),
            optional(
                "truncate_messages = do_truncation and isinstance(max_seq_length, int) and max_seq_length > 0 and "
                'not locals().get("_unsloth_wrapped_packing", False)'
            ),
            optional("message_cut = slice(-max_seq_length, None) if truncate_messages and $_ else slice(None, max_seq_length)"),
            required("dataset = pack_dataset($_, max_seq_length, $$$_)").insert_after(_TELL),
            every("do_truncation"),
            every("max_seq_length", accounted_by=["max_seq_length = $VALUE", "max_seq_length == 0"]),
            every("$CALL($$$ARGS, truncation=$VALUE)"),
        ],
        cases=[
            Case(
                before=_FUNCTION.format(decide="", tell=""),
                after=_FUNCTION.format(decide=_indented(_DECIDE, 4), tell=_indented(_TELL, 8)),
            )
        ],
    ),
)
