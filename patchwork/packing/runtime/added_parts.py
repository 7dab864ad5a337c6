"""Refuses packed rows in a model that was given other parts since it was isolated: token mixers, and adapters by row.

What reads the model is not traced by torch.compile. Calls that describe no documents do not get that far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import IsolationError
from ..models.adapters import NAMES, acting_reason
from ..models.families import Family
from ..models.known_code import refuse_beside, refuse_strangers
from .call_boundaries import describes_nothing, resolve
from .markers import FLAG


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_added(backbone: Any, family: Family) -> None:
    """Raises IsolationError for token mixers inside a backbone that are not known."""
    refuse_strangers(backbone, family)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def adapters_reason(model: Any) -> str | None:
    """Why the adapters that act in a model cannot work on packed rows, else None."""
    return acting_reason(model)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_added_beside(head: Any, arguments: Mapping[str, Any]) -> None:
    """Raises IsolationError if the call is packed and a part beside the backbones mixes tokens, or an adapter there does not
    work on each token alone."""
    try:
        refuse_beside(head, _is_backbone)
        if (reason := acting_reason(head, beside=_is_backbone)) is not None:
            raise IsolationError(f"a packed row reached {type(head).__name__}: {reason}")
    except IsolationError:
        found = resolve(arguments, recurrent=False)
        if found is not None and found.packed:
            raise


def refuse_adapters(model: Any, call: Mapping[str, Any]) -> None:
    """Raises IsolationError if the call of a PeftModel is packed and its adapters do not work on each token alone.

    `call`: the local variables of its forward, at its start. With prompts, PEFT drops position_ids before the model inside sees
    them; and an error further inside would leave PEFT's hooks for this call on the layers.
    """
    arguments = {**call, **call.get("kwargs", {})}
    if describes_nothing(arguments, recurrent=False, known=False):
        return
    if reason := NAMES if arguments.get("adapter_names") is not None else adapters_reason(model):
        found = resolve(arguments, recurrent=False, known=False)
        if found is not None and found.packed:
            raise IsolationError(f"a packed row of {found.num_documents} documents reached {type(model).__name__}: {reason}")


def _is_backbone(module: Any) -> bool:
    return (flag := module.__dict__.get(FLAG)) is not None and flag.role == "backbone"
