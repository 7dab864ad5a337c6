"""Orders the patches of one module: as they were given, but for their `before` and `after`."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from .errors import InvalidPatch
from .patch import Patch


def ordered(patches: Sequence[Patch]) -> list[Patch]:
    """The patches so that each comes after those that it must follow; otherwise in the order given.

    Raises:
        InvalidPatch: `before` and `after` contradict each other; names the circle.
    """
    earlier: dict[str, set[str]] = {patch.name: set() for patch in patches}
    for patch in patches:
        for other in patches:
            if other is not patch and any(fnmatch.fnmatchcase(other.name, glob) for glob in patch.after):
                earlier[patch.name].add(other.name)
            if other is not patch and any(fnmatch.fnmatchcase(other.name, glob) for glob in patch.before):
                earlier[other.name].add(patch.name)
    left, done = list(patches), list[Patch]()
    while left:
        free = next((patch for patch in left if not earlier[patch.name] & {item.name for item in left}), None)
        if free is None:
            circle = _circle(left[0].name, earlier, {patch.name for patch in left})
            raise InvalidPatch(
                f"before= and after= go round in a circle: {' after '.join(circle)}",
                patch=circle[0],
                hint="take one of them out",
            )
        left.remove(free)
        done.append(free)
    return done


def _circle(name: str, earlier: dict[str, set[str]], left: set[str]) -> list[str]:
    path = [name]
    while path.count(path[-1]) == 1:
        path.append(min(earlier[path[-1]] & left))
    return path[path.index(path[-1]) :]
