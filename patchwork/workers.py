"""Applies the patches of this process in worker processes that import everything anew, such as a loader's spawned ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .api import apply
from .engine.patch import Patch
from .engine.transaction import applied_patches
from .packing.trainers.collator_check import Watched


class PatchesOfThisProcess:
    """Unpickling it applies the patches that were in force where it was pickled."""

    def __reduce__(self) -> tuple[Callable[..., PatchesOfThisProcess], tuple[tuple[Patch, ...]]]:
        return _applied_again, (applied_patches(),)


def _applied_again(patches: tuple[Patch, ...]) -> PatchesOfThisProcess:
    if patches:
        apply(*patches)
    return PatchesOfThisProcess()


def watched(collator: Callable[[Any], Any]) -> Watched:
    """A collator whose batches are checked, also in a worker process, where the patches of this process are applied first."""
    return Watched(collator, before=PatchesOfThisProcess())
