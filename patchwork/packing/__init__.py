"""Correct packing: documents that share a row never see each other.

Names load on first use, so importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .boundaries import Boundaries
    from .decision import Decision, PackingRefused, decide
    from .errors import BoundariesError, IsolationError, PackingWarning
    from .isolation import adopt, isolate, restore
    from .probing.leaks import LeakReport, probe

__all__ = [
    "Boundaries",
    "BoundariesError",
    "Decision",
    "IsolationError",
    "LeakReport",
    "PackingRefused",
    "PackingWarning",
    "adopt",
    "decide",
    "isolate",
    "probe",
    "restore",
]

_HOMES = {
    "Boundaries": "boundaries",
    "BoundariesError": "errors",
    "IsolationError": "errors",
    "Decision": "decision",
    "PackingRefused": "decision",
    "PackingWarning": "errors",
    "decide": "decision",
    "adopt": "isolation",
    "isolate": "isolation",
    "restore": "isolation",
    "LeakReport": "probing.leaks",
    "probe": "probing.leaks",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
