"""Finds the places of an anchor: the matches of its pattern in what `inside`, `after` and `before` leave of the function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import AnchorAmbiguous
from .holes import is_free, is_header
from .patch import Anchor
from .pattern import Match, Occurrences, find, find_headers, position, same_code

Position = tuple[float, float]
_START: Position = (0, 0)
_END: Position = (float("inf"), 0)


@dataclass(frozen=True)
class _Region:
    """A part of the function, and what the patterns that mark it out captured. `nodes`: None for all of them."""

    bound: Occurrences
    nodes: frozenset[int] | None = None
    container: tuple[int, ...] = ()
    start: Position = _START
    end: Position = _END

    def holds(self, match: Match) -> bool:
        if self.nodes is not None and (id(match.nodes[0]) not in self.nodes or _identity(match) == self.container):
            return False
        return self.start <= position(match.nodes[0]) and end_of(match.nodes[-1]) <= self.end


def places(anchor: Anchor, function: ast.AST) -> list[Match]:
    """The matches of an anchor in the body of `function`, in the order of the text.

    Raises:
        AnchorAmbiguous: `after` or `before` matches more than once, or a match lies in two places that capture different code.
    """
    if anchor.inside is None and anchor.after is None and anchor.before is None:
        return find(anchor.pattern, function)
    found: dict[tuple[int, ...], Match] = {}
    for region in _regions(anchor, function):
        for match in find(anchor.pattern, function, region.bound):
            if region.holds(match) and not _same_captures(found.setdefault(_identity(match), match), match):
                raise AnchorAmbiguous(
                    f"the match lies in two places that fit inside={anchor.inside!r} and capture different code",
                    where=f"line {match.line}",
                    hint="write more of the code around it into inside=",
                )
    return sorted(found.values(), key=lambda match: position(match.nodes[0]))


def end_of(node: ast.AST) -> Position:
    """Line and column where a node ends."""
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def _regions(anchor: Anchor, function: ast.AST) -> Iterator[_Region]:
    regions = [_Region({})]
    if anchor.inside is not None:
        search = find_headers if is_header(anchor.inside) else find
        regions = [
            _Region(
                match.occurrences,
                frozenset(id(child) for node in match.nodes for child in ast.walk(node)),
                () if search is find_headers else _identity(match),
            )
            for match in search(anchor.inside, function)
        ]
    for region in regions:
        bound, start, end = region.bound, region.start, region.end
        if anchor.after is not None:
            if (match := _landmark("after", anchor.after, function, region, bound)) is None:
                continue
            bound, start = match.occurrences, max(start, end_of(match.nodes[-1]))
        if anchor.before is not None:
            if (match := _landmark("before", anchor.before, function, region, bound)) is None:
                continue
            bound, end = match.occurrences, position(match.nodes[0])
        yield _Region(bound, region.nodes, region.container, start, end)


def _landmark(name: str, pattern: str, function: ast.AST, region: _Region, bound: Occurrences) -> Match | None:
    """The one place that `after` or `before` means: in the whole function, or else in what `inside` leaves of it."""
    everywhere = find(pattern, function, bound)
    found = [match for match in everywhere if region.holds(match)] if len(everywhere) > 1 else everywhere
    if len(found) > 1:
        raise AnchorAmbiguous(
            f"{name}= matches {len(found)} times, so where it narrows to is unclear: {pattern}",
            where=f"lines {', '.join(str(match.line) for match in found)}",
            hint="write more of the code around it into the pattern, or narrow it with inside=",
        )
    return found[0] if found else None


def _identity(match: Match) -> tuple[int, ...]:
    return tuple(id(node) for node in match.nodes)


def _same_captures(one: Match, other: Match) -> bool:
    return all(is_free(hole) or same_code(held, other.bindings[hole]) for hole, held in one.bindings.items())
