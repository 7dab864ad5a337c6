"""trl.data_utils: packing keeps its boundaries, and accounts for its tokens."""

from __future__ import annotations

from patchwork.engine.patch import Patch, at_start, optional, required

PATCHES = (
    Patch(
        name="trl.packer",
        target="trl.data_utils:pack_dataset",
        versions={"trl": ">=0.22.2"},
        reason=(
            "`wrapped` packing does not say where documents begin, which a trainer needs, and from 1.0.0 to 1.13.0 it loses and "
            "repeats tokens of every dataset of more than one batch. Every strategy fails on empty documents, or loses ends of "
            "long ones without a word."
        ),
        edits=[
            at_start(
                "from patchwork.packing.bins import accounted, has_lengths, packable, wrapped_packer\n"
                "dataset = _patchwork_documents = packable(dataset, seq_length, strategy)"
            ),
            required("dataset.map(_pack_wrapped, $$$HOW)").replace("dataset.map(wrapped_packer(strategy), $$$HOW)"),
            optional('strategy in {"bfd", "bfd_split"} and "columns" in format').replace(
                'has_lengths(strategy) and "columns" in format'
            ),
            required("return dataset").replace("return accounted(dataset, _patchwork_documents, seq_length, strategy)"),
        ],
    ),
)
