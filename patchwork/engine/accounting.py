"""Fails if the target uses a pattern at a place that no anchor of the patch covers: completeness guards, `every()`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .errors import UnaccountedUse
from .locate import Function
from .narrowing import places
from .patch import Anchor, AtStart, Change, Edit, Every, OneOf
from .pattern import Match, find
from .splicing import holder
from .standing import made_by


def check_accounted(guard: Every, edits: Iterable[Change], function: Function) -> None:
    """Raise UnaccountedUse unless each use that `guard` names lies in code that the patch's anchors, or its edits, write out."""
    uses = find(guard.pattern, function)
    accounted = {id(node) for match in _covering(guard, edits, function) for node in _written_out(match)}
    loose = [match for match in uses if id(match.nodes[0]) not in accounted]
    if loose or not uses:
        lines = [f"line {match.line}: {_told(match, function)}" for match in loose]
        count = f"{len(loose)} of {len(uses)} uses of" if len(uses) > 1 else "a use of"
        raise UnaccountedUse(
            f"{count} {guard.pattern} that no anchor accounts for" if loose else f"guard finds no use of {guard.pattern}",
            where="\n".join(lines),
            hint="look at what the release does there: give it an anchor, or add it to accounted_by= if it needs no change",
        )


def _covering(guard: Every, edits: Iterable[Change], function: Function) -> Iterator[Match]:
    for pattern in guard.accounted_by:
        yield from find(pattern, function)
    for change in edits:
        for part in change.edits if isinstance(change, OneOf) else (change,):
            if isinstance(part, Anchor):
                yield from places(part, function)
            elif isinstance(part, Edit):
                yield from places(part.anchor, function)
                if part.action != "remove":  # in a source that is patched already, what the edit left behind
                    yield from find(made_by(part), function)
            elif isinstance(part, AtStart):
                yield from find(part.code, function)


def _written_out(match: Match) -> Iterator[ast.AST]:
    """The nodes of a match that the pattern spells, those that a hole swallowed left out."""
    swallowed = {id(node) for held in match.occurrences.values() for item in held for node in _roots(item)}
    queue = list(match.nodes)
    for node in queue:
        if id(node) not in swallowed:
            yield node
            queue.extend(ast.iter_child_nodes(node))


def _roots(held: object) -> tuple[object, ...]:
    return held if isinstance(held, tuple) else (held,)


def _told(match: Match, function: Function) -> str:
    """The first line of the innermost statement around a match."""
    node = match.nodes[0]
    return ast.unparse(node if isinstance(node, ast.stmt) else holder(node, function)[0]).splitlines()[0]
