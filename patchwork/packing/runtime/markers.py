"""The mark of a module that takes part in keeping documents apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..models.families import Family
from ..models.mixers import Mixer

FLAG = "_patchwork_isolation"
UNPADS = "_patchwork_unpads"  # on a backbone while it computes without padding: patchwork.packing.runtime.unpadding

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Flag:
    """The mark of an instance. It survives copy and pickle; unpickling it wraps the class in the new process
    (patchwork.packing.runtime.wrappers).

    `entry`: the family of a backbone, or what is known of a mixer. `mixers`: how many a layer, or a whole backbone, must
    reach, or a mixer holds. `reason`: why a guarded model refuses packed rows. `path`: of a mixer within its backbone.
    `native`: whether it, or the mixers of a backbone, may leave documents to kernels.
    """

    owner: type
    role: str
    entry: Family | Mixer | None = None
    mixers: int = 0
    reason: str = ""
    path: str = ""
    native: bool = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Flag:
        return self


def flag_of(module: Any) -> Flag | None:
    """The flag of a module; None without one.

    By getattr: torch.compile checks that again, but not a lookup in `__dict__`, and would run the code that it compiled for a
    model without flags in one that has them.
    """
    found: Flag | None = getattr(module, FLAG, None)
    return found


def tagged(wrapper: Any, role: str) -> Forward:
    """A wrapper on a class, with the role that it has there."""
    # wraps() has copied the dictionary of the function below, other roles on the same class included.
    wrapper.__patchwork_roles__ = (role,)
    return wrapper  # type: ignore[no-any-return]
