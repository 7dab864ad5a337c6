"""Does a captured name still mean the same where an edit uses it? Not if it is bound again on the way, or of another scope there.

A hole stands for text. `$L` captured as `logits` at one place and written at another is the same value only if nothing on the way
gives `logits` a new one, and if it is the same variable at both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .errors import CaptureRebound
from .holes import hole_of, holes_in, many_of, python_of
from .locate import Function
from .patch import Edit
from .pattern import Captured, Match, position
from .scopes import Moment, Tree, bindings_in, end_of, spelled, start_of
from .splicing import holder
from .substitution import substituted

_Loop = (ast.For, ast.AsyncFor, ast.While)


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
    template = ast.parse(python_of(edit.code))
    uses: list[Use] = []
    for hole in sorted(holes_in(edit.code)):
        places = [place for place in match.occurrences[hole] if not isinstance(place, str)]
        nodes = [node for place in places for node in _nodes(place) if not isinstance(node, ast.stmt)]
        names = frozenset(name for node in nodes for name in _names(node))
        if not names:
            continue
        _check_scopes(hole, names, edit, match, function)
        _check_template(hole, names, template, nodes[0])
        if edit.action == "replace" and match.block is not None:
            _check_replacement(hole, names, edit, match, template)
            continue
        uses.append(_checked(hole, names, nodes, moment, _place(edit, match, function), match, function))
    bound = {item.name for statement in template.body for item in bindings_in(statement)}
    return uses, Made(frozenset(name for name in bound if hole_of(name) is None), moment)


def check_edits(uses: Sequence[Use], made: Iterable[tuple[Made, str]]) -> None:
    """Raise CaptureRebound if the code of one edit (with the name of its patch) binds what another one reads later."""
    for use in uses:
        for item, patch in made:
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
                raise _rebound(hole, item.name, moments[0][0], item.moment[0])
    return Use(hole, names, moments[0][0], low, high)


def _check_scopes(hole: str, names: frozenset[str], edit: Edit, match: Match, function: Function) -> None:
    """The same variable at the capture and at the use: no comprehension, lambda or inner function has one of that name."""
    place, node = _place(edit, match, function), match.bindings[hole]
    tree, filled = Tree(function), Tree(substituted(edit.code, match.bindings))
    for item in [item for part in _nodes(node) for item in ast.walk(part) if isinstance(item, ast.Name) and item.id in names]:
        was = tree.owner(item.id, item)
        if any(was is child for part in _nodes(node) for child in ast.walk(part)):
            continue  # what the captured code binds for itself, such as a comprehension in it, goes along with it
        # A scope that the edit's code has around the hole; an identifier that became an attribute or a keyword is no variable.
        carried = filled.owner(item.id, item) if filled.holds(item) else None
        if (was is not tree.owner(item.id, place)) if carried is None else was is None:
            raise CaptureRebound(
                f"{hole} captures {item.id} at line {position(item)[0]}, but where the edit uses it that is a variable of "
                "another scope (a comprehension, a lambda or an inner function)",
                where=f"line {position(place)[0]}",
                hint="anchor a place in the same scope",
            )


def _check_template(hole: str, names: frozenset[str], template: ast.Module, node: ast.AST) -> None:
    """The edit's own code does not give a captured name another meaning before it writes the hole."""
    tree = Tree(template)
    bound = [item for statement in template.body for item in bindings_in(statement)]
    for spot in [item for item in ast.walk(template) if _is_hole(item, hole)]:
        for name in names:
            root = name.partition(".")[0].partition("[")[0]
            if tree.owner(root, spot) is not None or any(b.name == name and b.moment < start_of(spot) for b in bound):
                raise CaptureRebound(
                    f"{hole} captures {name} at line {position(node)[0]}, and the edit's own code gives {name} another meaning",
                    where=ast.unparse(template).splitlines()[0],
                    hint="use a name of its own in the edit's code",
                )


def _check_replacement(hole: str, names: frozenset[str], edit: Edit, match: Match, template: ast.Module) -> None:
    """Statements that give way bind nothing any more; what a hole carries over does."""
    for other in sorted(holes_in(edit.code)):
        carried = match.bindings[other]
        items = _nodes(carried)
        again = [item for node in items for item in bindings_in(node) if item.name in names]
        if not again or other == hole:
            continue
        nodes = [node for place in match.occurrences[hole] for node in _nodes(place)]
        line = position(nodes[0])[0]
        if not isinstance(items[0], ast.stmt):  # `:=` in an argument: its place among the others may change
            raise _rebound(hole, again[0].name, line, again[0].moment[0])
        begin, end = start_of(items[0]), start_of(items[-1])
        was = {start_of(node) > end for node in nodes if not begin <= start_of(node) <= end}
        spots = [start_of(node) for node in ast.walk(template) if _is_hole(node, hole)]
        block = [start_of(node) for node in ast.walk(template) if _is_hole(node, other)]
        now = {spot > place for spot in spots for place in block}
        if now - was or len(was) > 1:
            raise _rebound(hole, again[0].name, line, again[0].moment[0])


def _is_hole(node: ast.AST, hole: str) -> bool:
    return isinstance(node, ast.Name) and node.id == python_of(hole)


def _rebound(hole: str, name: str, captured: int, again: int) -> CaptureRebound:
    return CaptureRebound(
        f"{hole} captures {name} at line {captured}, but {name} is bound again at line {again}, before the edit's code uses it",
        where=f"lines {min(captured, again)}-{max(captured, again)}",
        hint="anchor closer to the use, or keep the value in a variable of its own where it is captured",
    )


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
    """The last moment that counts: code in a loop runs again after what follows it there, what was captured before is not."""
    for node in ast.walk(function):
        if not isinstance(node, _Loop):
            continue
        last = (*end_of(node)[:2], 2)
        if not start_of(node.body[0])[:2] <= use[:2] <= last[:2]:
            continue
        # What a `for` runs over is captured once, though it stands in the loop's own header.
        once = (start_of(node.iter), end_of(node.iter)) if isinstance(node, ast.For | ast.AsyncFor) else (start_of(node),) * 2
        if any(moment < start_of(node) or once[0] <= moment < once[1] for moment in captured):
            high = max(high, last)
    return high


def _nodes(place: Captured) -> tuple[ast.AST, ...]:
    if isinstance(place, tuple):
        return tuple(node for node in place if hasattr(node, "lineno"))
    return (place,) if isinstance(place, ast.AST) and hasattr(place, "lineno") else ()


def _names(node: ast.AST) -> Iterator[str]:
    """Variables, dotted names and items that a captured expression consists of."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name | ast.Attribute | ast.Subscript) and (name := spelled(child)) and not many_of(name):
            yield name
