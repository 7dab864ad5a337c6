"""Puts new code into a living function, and takes it out again."""

from __future__ import annotations

import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import TargetMissing
from .inner_functions import exchange
from .lookup import attribute_of, layers_of
from .record import Patched, State, originals


@dataclass
class Swap:
    """One function and the code it is to get.

    Attributes:
        caches: memoising layers above it, cleared at the swap.
        inner: the code that functions which it made before run now, and are to run.
        stuck: how many of those cannot be given the new code.
        apart: where the module's attribute does not lead to it, the spec that the module was loaded by.
    """

    qualname: str
    function: types.FunctionType
    code: types.CodeType
    kwdefaults: dict[str, object] = field(default_factory=dict)
    caches: tuple[object, ...] = ()
    inner: tuple[tuple[types.CodeType, types.CodeType], ...] = ()
    stuck: int = 0
    apart: object = None

    def holds(self, module: types.ModuleType) -> bool:
        """Whether the module's function is still this one, running this code (a reload makes a new function)."""
        if self.apart is not None:
            return self.function.__code__ is self.code and module.__spec__ is self.apart
        try:
            layers = layers_of(attribute_of(module, self.qualname))
        except TargetMissing:
            return False
        return self.function.__code__ is self.code and any(layer is self.function for layer, _ in layers)

    def commit(self) -> None:
        """Put the code in; the function's own defaults stay the same objects."""
        before = State.of(self.function)
        added = {**(before.kwdefaults or {}), **self.kwdefaults}
        State(self.code, added or None).put(self.function)
        originals[self.function] = Patched(before, self.code)
        exchange(self.inner)
        for cache in self.caches:
            cache.cache_clear()  # type: ignore[attr-defined]

    def forget_replaced(self) -> None:
        """Keep no earlier state of a function that a reloader has given new code of the file since: it goes back to that one."""
        patched = originals.get(self.function)
        if patched is not None and self.function.__code__ is not patched.code:
            del originals[self.function]

    def recall(self) -> None:
        """Give the functions that it made, before the swap and since, their original code back."""
        exchange([(new, old) for old, new in self.inner])

    def undo(self) -> None:
        """Give the function its original code and defaults back. Caches above it are cleared: the patched code computed their
        entries.

        A function that somebody gave other code since then is left as it is, with a warning.
        """
        self.recall()
        _restore(self.function, self.caches)


def _restore(function: types.FunctionType, caches: Sequence[object]) -> None:
    patched = originals.pop(function)
    if function.__code__ is not patched.code:
        where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        warnings.warn(f"{function.__qualname__} was given other code ({where}) after it was patched: left as it is", stacklevel=3)
        return
    patched.before.put(function)
    for cache in caches:
        cache.cache_clear()  # type: ignore[attr-defined]
