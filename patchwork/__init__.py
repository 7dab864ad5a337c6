"""patchwork: patch installed Python source safely, and pack samples exactly.

    import patchwork
    patchwork.apply()

Only names; what stands behind them is imported when it is used. Importing this package loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import packing as packing
    from .api import apply as apply
    from .api import revert as revert
    from .api import status as status
    from .engine.errors import AnchorAmbiguous as AnchorAmbiguous
    from .engine.errors import AnchorMissing as AnchorMissing
    from .engine.errors import AnchorMoved as AnchorMoved
    from .engine.errors import BrokenDependency as BrokenDependency
    from .engine.errors import CaptureRebound as CaptureRebound
    from .engine.errors import CaseFails as CaseFails
    from .engine.errors import ForeignPatch as ForeignPatch
    from .engine.errors import InvalidMatrix as InvalidMatrix
    from .engine.errors import InvalidPatch as InvalidPatch
    from .engine.errors import InvalidResult as InvalidResult
    from .engine.errors import MissingName as MissingName
    from .engine.errors import PartlyNative as PartlyNative
    from .engine.errors import PatchConflict as PatchConflict
    from .engine.errors import PatchError as PatchError
    from .engine.errors import ReleaseUnavailable as ReleaseUnavailable
    from .engine.errors import SourceMismatch as SourceMismatch
    from .engine.errors import SourceUnavailable as SourceUnavailable
    from .engine.errors import TargetMissing as TargetMissing
    from .engine.errors import UnaccountedUse as UnaccountedUse
    from .engine.errors import UnknownPatch as UnknownPatch
    from .engine.errors import UnknownRelease as UnknownRelease
    from .engine.errors import Unswappable as Unswappable
    from .engine.patch import Case as Case
    from .engine.patch import Patch as Patch
    from .engine.patch import at_start as at_start
    from .engine.patch import every as every
    from .engine.patch import one_of as one_of
    from .engine.patch import optional as optional
    from .engine.patch import parameter as parameter
    from .engine.patch import required as required
    from .engine.report import Outcome as Outcome
    from .engine.report import Report as Report
    from .engine.rewriting import Rewrite as Rewrite
    from .engine.rewriting import rewrite as rewrite

__version__ = "0.1.0"

_HOMES = {
    "api": ("apply", "revert", "status"),
    "engine.errors": (
        "AnchorAmbiguous",
        "AnchorMissing",
        "AnchorMoved",
        "BrokenDependency",
        "CaptureRebound",
        "CaseFails",
        "ForeignPatch",
        "InvalidMatrix",
        "InvalidPatch",
        "InvalidResult",
        "MissingName",
        "PartlyNative",
        "PatchConflict",
        "PatchError",
        "ReleaseUnavailable",
        "SourceMismatch",
        "SourceUnavailable",
        "TargetMissing",
        "UnaccountedUse",
        "UnknownPatch",
        "UnknownRelease",
        "Unswappable",
    ),
    "engine.patch": ("Case", "Patch", "at_start", "every", "one_of", "optional", "parameter", "required"),
    "engine.report": ("Outcome", "Report"),
    "engine.rewriting": ("Rewrite", "rewrite"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "__version__", "packing"]


def __getattr__(name: str) -> object:
    if name == "packing":
        return importlib.import_module(".packing", __name__)
    if name in _HOME_OF:
        value = getattr(importlib.import_module("." + _HOME_OF[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
