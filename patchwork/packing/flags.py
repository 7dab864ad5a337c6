"""What marks a module that takes part in keeping documents apart?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from patchwork.packing.families import Family
from patchwork.packing.mixers import Mixer

FLAG = "_patchwork_isolation"
UNPADS = "_patchwork_unpads"  # on a backbone while it computes without padding: patchwork.packing.unpadding

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Flag:
    """What marks an instance. It travels with copies and pickles, and puts the wrapper on the class where it arrives.

    ``entry``: the family of a backbone, or what is known of a mixer. ``mixers``: how many a layer, or a whole backbone, must
    reach, or a mixer holds. ``reason``: why a guarded model refuses packed rows. ``path``: of a mixer within its backbone.
    ``native``: whether it, or the mixers of a backbone, may leave documents to kernels.
    """

    owner: type
    role: str
    entry: Family | Mixer | None = None
    mixers: int = 0
    reason: str = ""
    path: str = ""
    native: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, tuple(getattr(self, field) for field in self.__dataclass_fields__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Flag:
        return self


def _arrived(*fields: Any) -> Flag:
    from patchwork.packing.transport import install

    flag = Flag(*fields)
    install(flag)
    return flag


def flag_of(module: Any) -> Flag | None:
    """The flag of a module; None without one.

    By getattr: torch.compile checks that again, but not a lookup in ``__dict__``, and would run the code that it compiled for a
    model without flags in one that has them.
    """
    found: Flag | None = getattr(module, FLAG, None)
    return found


def tagged(wrapper: Any, role: str) -> Forward:
    """A wrapper on a class, with the role that it has there."""
    # wraps() has copied the dictionary of the function below, other roles on the same class included.
    wrapper.__patchwork_roles__ = (role,)
    return wrapper  # type: ignore[no-any-return]


# TRL's attention over trees of prompts and their completions. It has its own arguments for who sees whom, and the positions of
# a branch go on from its stem: they restart, and no document begins there.
TREES = "tree_fa3"


def implementation_of(module: Any) -> str:
    """The name under which a model or its attention looks its attention function up."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager")


def flash(implementation: str) -> bool:
    """Whether attention of that name is a varlen kernel, which takes cumulative lengths."""
    return "flash" in implementation
