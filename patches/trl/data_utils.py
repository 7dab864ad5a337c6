"""trl.data_utils: `wrapped` packing keeps its boundaries, and its tokens."""

from __future__ import annotations

from patchwork.engine.patch import Patch, at_start, optional, required

PATCHES = (
    Patch(
        name="trl.sft.wrapped",
        target="trl.data_utils:pack_dataset",
        versions={"trl": ">=0.22.2"},
        reason=(
            "`wrapped` packing does not say where documents begin, and from 1.0.0 to 1.13.0 it loses and repeats tokens of every "
            "dataset of more than one batch."
        ),
        edits=[
            at_start("from patchwork.packing.bins import pack_wrapped"),
            required("dataset.map(_pack_wrapped, $$$HOW)").replace("dataset.map(pack_wrapped, $$$HOW)"),
            optional('strategy in {"bfd", "bfd_split"} and "columns" in format').replace('"columns" in format'),
        ],
    ),
)
