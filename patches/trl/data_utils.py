"""trl.data_utils: packing keeps its boundaries, and accounts for its tokens."""

from __future__ import annotations

from patchwork import Patch, at_start, optional, parameter, required

PATCHES = (
    Patch(
        name="trl.packer",
        target="trl.data_utils:pack_dataset",
        versions={"trl": ">=0.22.2"},
        reason=(
            "`wrapped` packing does not say where documents begin, and from 1.0.0 to 1.13.0 it loses and repeats tokens of every "
            "dataset of more than one batch. Every strategy fails on empty documents, or loses ends of long ones without a word. "
            "Only a trainer asks for the boundaries of `wrapped` rows; other callers get the columns that TRL gives them."
        ),
        edits=[
            parameter("_patchwork_seq_lengths", default="False"),
            at_start(
                "from patchwork.packing.hooks import accounted, pack_wrapped, pack_wrapped_as_trl, packable\n"
                "dataset = _patchwork_documents = packable(dataset, seq_length, strategy)"
            ),
            required("dataset.map(_pack_wrapped, $$$HOW)").replace(
                "dataset.map(pack_wrapped if _patchwork_seq_lengths else pack_wrapped_as_trl, $$$HOW)"
            ),
            optional('strategy in {"bfd", "bfd_split"} and "columns" in format').replace(
                '(strategy in {"bfd", "bfd_split"} or _patchwork_seq_lengths) and "columns" in format'
            ),
            required("return dataset").replace(
                "return accounted(dataset, _patchwork_documents, seq_length, strategy, _patchwork_seq_lengths)"
            ),
        ],
    ),
)
