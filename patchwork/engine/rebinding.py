"""Does a captured name still mean the same where an edit uses it? Not if it is bound again in between.

A hole stands for text. `$L` captured as `logits` at one place and written at another is the same value only if nothing on the way
gives `logits` a new one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .errors import CaptureRebound
from .holes import holes_in, many_of, python_of
from .locate import Function
from .patch import Edit
from .pattern import Captured, Match, position
from .splicing import holder

# Line, column, and the order of what happens at one place: code ends, names are bound, inserted code runs.
Moment = tuple[int, int, int]
_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_Loop = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class _Binding:
    name: str
    node: ast.AST
    moment: Moment


def check_captures(edit: Edit, match: Match, function: Function) -> None:
    """Raise CaptureRebound if the edit's code would read a captured name after it got another value.

    Args:
        edit: what is to be made of it.
        match: where the anchor matches.
        function: the target.
    """
    if edit.action == "remove":
        return
    bound: list[_Binding] | None = None
    for hole in sorted(holes_in(edit.code)):
        places = [place for place in match.occurrences[hole] if not isinstance(place, str)]
        names = {name for place in places for name in _names(place)}
        if not names:
            continue
        if edit.action == "replace" and match.block is not None:
            _check_replacement(hole, names, edit, match)
            continue
        bound = list(_bindings(function, match)) if bound is None else bound
        moments = [_start(node) for place in places for node in _nodes(place)]
        use = _use(edit, match, function)
        low, high = min(*moments, use), _with_loops(max(*moments, use), moments, use, function)
        own = {id(child) for place in places for node in _nodes(place) for child in ast.walk(node)}
        for item in bound:
            if item.name in names and low < item.moment <= high and id(item.node) not in own:
                raise _rebound(hole, item.name, moments[0][0], item.moment[0])


def _check_replacement(hole: str, names: set[str], edit: Edit, match: Match) -> None:
    """Statements that give way bind nothing any more; those that a hole carries over do."""
    template = ast.parse(python_of(edit.code))
    for other in sorted(holes_in(edit.code)):
        carried = match.bindings[other]
        if not (isinstance(carried, tuple) and carried and isinstance(carried[0], ast.stmt)):
            continue
        again = [item for node in carried for item in _bindings_in(node) if item.name in names]
        if not again:
            continue
        begin, end = _start(carried[0]), _start(carried[-1])
        nodes = [node for place in match.occurrences[hole] for node in _nodes(place)]
        was = {_start(node) > end for node in nodes if not begin <= _start(node) <= end}
        spots = [_start(node) for node in ast.walk(template) if _is_hole(node, hole)]
        block = [_start(node) for node in ast.walk(template) if _is_hole(node, other)]
        now = {spot > place for spot in spots for place in block}
        if now - was or len(was) > 1:
            raise _rebound(hole, again[0].name, nodes[0].lineno, again[0].moment[0])  # type: ignore[attr-defined]


def _is_hole(node: ast.AST, hole: str) -> bool:
    return isinstance(node, ast.Name) and node.id == python_of(hole)


def _rebound(hole: str, name: str, captured: int, again: int) -> CaptureRebound:
    return CaptureRebound(
        f"{hole} captures {name} at line {captured}, but {name} is bound again at line {again}, before the edit's code uses it",
        where=f"lines {min(captured, again)}-{max(captured, again)}",
        hint="anchor closer to the use, or keep the value in a variable of its own where it is captured",
    )


def _use(edit: Edit, match: Match, function: Function) -> Moment:
    """When the edit's code runs."""
    if edit.action == "insert_before":
        first = match.nodes[0]
        return (*position(first if match.block is not None else holder(first, function)[0]), -1)
    if edit.action == "insert_after":
        last = match.nodes[-1]
        return (*_end(last if match.block is not None else holder(last, function)[0])[:2], 2)
    return _end(match.nodes[-1])


def _with_loops(high: Moment, captured: list[Moment], use: Moment, function: Function) -> Moment:
    """The last moment that counts: code in a loop runs again after what follows it there, what was captured before is not."""
    for node in ast.walk(function):
        if not isinstance(node, _Loop):
            continue
        last = (*_end(node)[:2], 2)
        if not _start(node.body[0])[:2] <= use[:2] <= last[:2]:
            continue
        # What a `for` runs over is captured once, though it stands in the loop's own header.
        once = (_start(node.iter), _end(node.iter)) if isinstance(node, ast.For | ast.AsyncFor) else (_start(node), _start(node))
        if any(moment < _start(node) or once[0] <= moment < once[1] for moment in captured):
            high = max(high, last)
    return high


def _nodes(place: Captured) -> tuple[ast.AST, ...]:
    if isinstance(place, tuple):
        return tuple(node for node in place if hasattr(node, "lineno"))
    return (place,) if isinstance(place, ast.AST) and hasattr(place, "lineno") else ()


def _names(place: Captured) -> Iterator[str]:
    """Variables and dotted names that captured expressions consist of; statements carry their own meaning."""
    for node in _nodes(place):
        if not isinstance(node, ast.stmt):
            for child in ast.walk(node):
                if isinstance(child, ast.Name | ast.Attribute) and (name := _dotted(child)):
                    yield name


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return "" if many_of(node.id) else node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _bindings(function: Function, match: Match) -> Iterator[_Binding]:
    """What the scope that holds the match binds, and the scopes around it."""
    at = _start(match.nodes[0])
    queue: list[ast.AST] = list(function.body)
    for node in queue:
        yield from _bound_by(node)
        if not isinstance(node, _Scope) or _start(node) <= at <= _end(node):
            queue.extend(ast.iter_child_nodes(node))


def _bindings_in(statement: ast.AST) -> Iterator[_Binding]:
    queue: list[ast.AST] = [statement]
    for node in queue:
        yield from _bound_by(node)
        if not isinstance(node, _Scope):
            queue.extend(ast.iter_child_nodes(node))


def _bound_by(node: ast.AST) -> Iterator[_Binding]:
    """The names that a node binds, each with the moment at which it does."""
    if isinstance(node, ast.Assign | ast.Delete):
        yield from _targets(node.targets, _bound(node))
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        yield from _targets([node.target], _bound(node))
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _targets([node.target], _bound(node.iter))
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            yield from _targets([item.optional_vars] if item.optional_vars else [], _bound(item.context_expr))
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield _Binding(alias.asname or alias.name.partition(".")[0], node, _bound(node))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield _Binding(node.name, node, _bound(node))
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield _Binding(node.name, node, _start(node.body[0]) if isinstance(node, ast.ExceptHandler) else _bound(node))
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield _Binding(node.rest, node, _bound(node))


def _targets(targets: Iterable[ast.expr], moment: Moment) -> Iterator[_Binding]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _targets(target.elts, moment)
        elif isinstance(target, ast.Starred):
            yield from _targets([target.value], moment)
        elif name := _dotted(target):
            yield _Binding(name, target, moment)


def _start(node: ast.AST) -> Moment:
    return (*position(node), 0)


def _end(node: ast.AST) -> Moment:
    return node.end_lineno, node.end_col_offset, 0  # type: ignore[attr-defined]


def _bound(node: ast.AST) -> Moment:
    return (*_end(node)[:2], 1)
