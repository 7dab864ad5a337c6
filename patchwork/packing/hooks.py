"""Names for patched code: all of this package that the functions of upstream packages call.

A name loads its module when it is first asked for, so a patched function that never packs loads no more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_BY_MODULE = {
    "isolation": "adopt",
    "decision": "adopt_model",
    "runtime.added_parts": "refuse_adapters",
    "runtime.handshake": "saw",
    "runtime.lost_boundaries": "in_step",
    "runtime.recompute": "carrying",
    "trainers.collators": """
        boundary_arguments documents_to_flatten flattening flattens_packed_rows places_in refuse_dropped
    """,
    "trainers.dataset_packing": "accounted columns_of pack_wrapped pack_wrapped_as_trl packable packer_for_training",
    "trainers.dpo": "flattens padding_free prepare without_padding",
    "trainers.model_adoption": "batch_prepared",
    "trainers.sft": "before_truncation confirmed counted guarded has_pictures is_packed text_side to_pack",
    "trainers.unsloth": "preparation with_full_documents_told",
}
_HOMES = {name: module for module, names in _BY_MODULE.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"{__package__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next time it is found at once, and torch.compile sees a plain global
    return value
