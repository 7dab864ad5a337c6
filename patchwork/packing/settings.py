"""The environment variables of packing. They are read at each call; an unknown value is an error."""

from __future__ import annotations

import os


def hybrid_packing() -> bool:
    """Whether models with recurrent mixers may be packed: `PATCHWORK_HYBRID_PACKING`, 1 (the default) or 0.

    Raises ValueError for another value.
    """
    return _switch("PATCHWORK_HYBRID_PACKING", "1", "0") == "1"


def raises_on_refusal() -> bool:
    """Whether a trainer that cannot pack is to raise, not to pad: `PATCHWORK_ON_REFUSAL`, pad (the default) or raise.

    Raises ValueError for another value.
    """
    return _switch("PATCHWORK_ON_REFUSAL", "pad", "raise") == "raise"


def wrong_switches() -> list[str]:
    """What is wrong with the values of these variables, a sentence each."""
    found = []
    for switch in (hybrid_packing, raises_on_refusal):
        try:
            switch()
        except ValueError as error:
            found.append(str(error))
    return found


def _switch(name: str, default: str, other: str) -> str:
    value = os.environ.get(name) or default
    if value not in (default, other):
        raise ValueError(f"{name}={value!r}: it is {default!r} (the default) or {other!r}")
    return value
