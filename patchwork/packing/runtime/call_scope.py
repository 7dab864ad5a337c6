"""The packed call that a thread is in, and whose boundaries hold there.

Torch is not imported here: kernels report here from processes that never pack.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..boundaries import Boundaries

BACKBONE, LAYER, NATIVE, ALONE, ORDINARY = "backbone", "layer", "native", "alone", "ordinary"


class Scope:
    """The extent of one forward.

    Attributes:
        boundaries: those of the packed call; an ordinary one has none.
        extent: of a backbone, of a layer, of a mixer whose kernels get the boundaries, of a mixer or attention that runs on
            documents of their own (ALONE), where nothing is packed any more, or of an ordinary call (ORDINARY).
        module: the path of the mixer, for messages.
        row_masks: of a backbone, whether its code computes with masks of the whole row.
        reached: how many mixers were called within.
        seen: the kernels that reported from within.
    """

    __slots__ = ("boundaries", "extent", "module", "reached", "row_masks", "seen")

    def __init__(self, boundaries: Boundaries, extent: str, module: str = "", row_masks: bool = False) -> None:
        self.boundaries, self.extent, self.module, self.row_masks = boundaries, extent, module, row_masks
        self.reached = 0
        self.seen: list[str] = []

    @classmethod
    def ordinary(cls) -> Scope:
        """The scope of a call in which nothing is packed, and which is known to be such a one."""
        nothing: Any = None
        return cls(nothing, ORDINARY)

    def again(self) -> Scope:
        """A scope for a second run of the same code, which counts anew."""
        return Scope(self.boundaries, self.extent, self.module, self.row_masks)


class _Ambient(threading.local):
    """The scope that this thread is in: threads of autograd and of DataParallel have their own.

    torch.compile traces the attribute of a thread-local object without a break, and guards on it; a ContextVar breaks the
    graph. The values are set here, not on the class, since the guard looks for them in the instance. `told`: what the
    call of the model around a backbone said, for heads that do not hand it on. `detached`: whether a packed call of the
    backbone inside came without a graph.
    """

    def __init__(self) -> None:
        self.scope: Scope | None = None
        self.told: Mapping[str, Any] | None = None
        self.detached = False


AMBIENT = _Ambient()


def packed_scope() -> Scope | None:
    """The scope that this thread is in, if rows are packed there."""
    scope = AMBIENT.scope
    return scope if scope is not None and scope.extent != ALONE and scope.extent != ORDINARY else None


@contextmanager
def within(scope: Scope | None) -> Iterator[None]:
    """Makes `scope` the one that holds."""
    outer = AMBIENT.scope
    AMBIENT.scope = scope
    try:
        yield
    finally:
        AMBIENT.scope = outer


@contextmanager
def telling(arguments: Mapping[str, Any] | None) -> Iterator[None]:
    """Holds ready what a model was called with, for the backbone inside."""
    outer = AMBIENT.told
    AMBIENT.told = arguments
    try:
        yield
    finally:
        AMBIENT.told = outer
