"""Refuses a captured name that means another value or variable where the edit uses it.

A hole stands for text. `$L` captured as `logits` at one place and written at another is the same value only if nothing on the way
gives `logits` a new one, and if it is the same variable at both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .errors import CaptureRebound
from .holes import holes_in, many_of
from .locate import Function
from .patch import Edit
from .pattern import Match, position
from .scopes import LOOPS, Moment, Tree, bindings_in, end_of, spelled, start_of
from .splicing import holder
from .templates import Template, nodes_in, rebound


@dataclass(frozen=True)
class Use:
    """What an edit reads of its captures: none of the names may be bound between the two moments."""

    hole: str
    names: frozenset[str]
    captured: int  # line
    low: Moment
    high: Moment


@dataclass(frozen=True)
class Made:
    """The names that an edit's own code binds, and when it runs."""

    names: frozenset[str]
    moment: Moment


def check_captures(edit: Edit, match: Match, function: Function) -> tuple[list[Use], Made]:
    """What an edit at a match reads and binds.

    Args:
        edit: what is to be made of it.
        match: where the anchor matches.
        function: the target.

    Raises:
        CaptureRebound: the edit's code would read a captured name after it got another value, or in a scope where it is another.
    """
    moment = _use(edit, match, function)
    if edit.action == "remove":
        return [], Made(frozenset(), moment)
    place = _place(edit, match, function)
    template = Template(edit, match, function, place)
    template.check_moved()
    uses: list[Use] = []
    for hole in sorted(holes_in(edit.code)):
        nodes = _captured(hole, match)
        names = frozenset(name for node in nodes for name in _names(node))
        if not names:
            continue
        template.check(hole, names)
        if edit.action != "replace" or match.block is None:  # statements that give way bind nothing any more
            uses.append(_checked(hole, names, nodes, moment, place, match, function))
    return uses, Made(template.binds(), moment)


def _captured(hole: str, match: Match) -> list[ast.AST]:
    """The expressions that a hole captured: those in the match itself, or else where the anchor was narrowed."""
    found = [node for place in match.occurrences[hole] for node in nodes_in(place) if not isinstance(node, ast.stmt)]
    here = {id(child) for node in match.nodes for child in ast.walk(node)}
    return [node for node in found if id(node) in here] or found


def check_edits(uses: Sequence[Use], own: Made, made: Iterable[tuple[Made, str, bool]]) -> None:
    """Raise CaptureRebound if the code of one edit binds what another one reads later.

    Args:
        uses, own: what the edit that reads captured, and itself.
        made: the others, with the names of their patches, and whether their code comes behind where both stand at one place.
    """
    for use in uses:
        for item, patch, behind in made:
            if behind and item.moment == own.moment == use.high:
                continue
            if use.names & item.names and use.low < item.moment <= use.high:
                name = min(use.names & item.names)
                raise CaptureRebound(
                    f"{use.hole} captures {name} at line {use.captured}, but an edit of {patch} binds it on the way to its use",
                    where=f"lines {use.captured}-{item.moment[0]}",
                    hint="let the other edit use a name of its own, or keep the value in a variable where it is captured",
                )


def _checked(
    hole: str, names: frozenset[str], nodes: list[ast.AST], use: Moment, place: ast.AST, match: Match, function: Function
) -> Use:
    moments = [start_of(node) for node in nodes]
    low, high = min(*moments, use), _with_loops(max(*moments, use), moments, use, function)
    own = {id(child) for node in nodes for child in ast.walk(node)}
    tree = Tree(function)
    for statement in function.body:
        for item in bindings_in(statement, start_of(match.nodes[0])):
            between = item.name in names and low < item.moment <= high and id(item.node) not in own
            if between and not tree.exclusive(item.node, place, nodes[0]):
                raise rebound(hole, item, moments[0][0])
    return Use(hole, names, moments[0][0], low, high)


def _place(edit: Edit, match: Match, function: Function) -> ast.AST:
    """The node in whose place, or beside which, the edit's code will stand."""
    node = match.nodes[-1 if edit.action == "insert_after" else 0]
    return node if match.block is not None or not edit.action.startswith("insert") else holder(node, function)[0]


def _use(edit: Edit, match: Match, function: Function) -> Moment:
    """When the edit's code runs."""
    if edit.action == "insert_before":
        return (*position(_place(edit, match, function)), -1)
    if edit.action == "insert_after":
        return (*end_of(_place(edit, match, function))[:2], 2)
    return end_of(match.nodes[-1])


def _with_loops(high: Moment, captured: list[Moment], use: Moment, function: Function) -> Moment:
    """The latest position at which a rebinding matters. In a loop that is the loop's end, because the edit's code runs again."""
    for node in ast.walk(function):
        if not isinstance(node, LOOPS):
            continue
        last = (*end_of(node)[:2], 2)
        if not start_of(node.body[0])[:2] <= use[:2] <= last[:2]:
            continue
        # What a `for` runs over is captured once, though it stands in the loop's own header.
        once = (start_of(node.iter), end_of(node.iter)) if isinstance(node, ast.For | ast.AsyncFor) else (start_of(node),) * 2
        if any(moment < start_of(node) or once[0] <= moment < once[1] for moment in captured):
            high = max(high, last)
    return high


def _names(node: ast.AST) -> Iterator[str]:
    """Variables, dotted names and items that a captured expression consists of."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name | ast.Attribute | ast.Subscript) and (name := spelled(child)) and not many_of(name):
            yield name
