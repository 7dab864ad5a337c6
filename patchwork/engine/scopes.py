"""Finds the scope that a name belongs to at a place in a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .pattern import position

# Line, column, and the order of what happens at one place: code ends, names are bound, inserted code runs, names are deleted.
Moment = tuple[int, int, int]
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class Binding:
    """A name (or dotted or subscripted target) that `node` gives a value, and when it does."""

    name: str
    node: ast.AST
    moment: Moment


class Tree:
    """The way from any node below `root` up to it; `resolve` says what bound names stand for."""

    def __init__(self, root: ast.AST, resolve: Callable[[Iterable[str]], set[str]] = set) -> None:
        self.root = root
        self._resolve = resolve
        self._parents = {id(child): node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}

    def holds(self, node: ast.AST) -> bool:
        """Whether `node` is below the root."""
        return id(node) in self._parents

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each ancestor of `node`, nearest first, with the child that leads down to it."""
        while node is not self.root:
            parent = self._parents[id(node)]
            yield parent, node
            node = parent

    def owner(self, name: str, node: ast.AST) -> ast.AST | None:
        """The scope inside `root` that the variable `name` belongs to at `node`; None: that of `root`, or one around it."""
        function_between, inner = False, node
        for parent, child in self.above(node):
            if parent is self.root:
                return None
            if isinstance(parent, _COMPREHENSIONS):
                first = parent.generators[0]
                outside = child is first and inner is first.iter
                if not outside and name in self._resolve(
                    target for item in parent.generators for target in names_in(item.target)
                ):
                    return parent
            elif isinstance(parent, ast.Lambda):
                if child is parent.body and name in self._resolve(_parameters(parent.args)):
                    return parent
                function_between = function_between or child is parent.body
            elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                if any(child is item for item in parent.body):
                    if name in self._resolve(_parameters(parent.args) | _own_names(parent.body)):
                        return parent
                    function_between = True
            elif (
                isinstance(parent, ast.ClassDef)
                and not function_between
                and _arm(parent, child)
                and name in _own_names(parent.body)
            ):
                return parent
            inner = child
        return None

    def exclusive(self, one: ast.AST, other: ast.AST, since: ast.AST) -> bool:
        """Whether `one` never runs before `other`, in what follows `since`: they stand in the two branches of an `if`."""
        up = {id(parent): child for parent, child in self.above(one)}
        around = {id(parent) for parent, _ in self.above(since)}
        for parent, child in self.above(other):
            if id(parent) in up:
                apart = isinstance(parent, ast.If) and _arm(parent, child) != _arm(parent, up[id(parent)])
                loops = (item for item, _ in self.above(parent) if isinstance(item, LOOPS))
                return apart and all(id(loop) in around for loop in loops)
        return False


def _arm(node: ast.If | ast.ClassDef, child: ast.AST) -> int:
    """Whether a child is in the body (1), in the other branch (2), or in neither (0)."""
    return (
        1 if any(child is item for item in node.body) else 2 if any(child is item for item in getattr(node, "orelse", ())) else 0
    )


def names_in(target: ast.AST) -> Iterator[str]:
    """The variables in an expression."""
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _parameters(arguments: ast.arguments) -> set[str]:
    return {item.arg for item in ast.walk(arguments) if isinstance(item, ast.arg)}


def _own_names(body: Iterable[ast.stmt]) -> set[str]:
    """The variables that a function's or class's body makes its own."""
    bound, elsewhere = set(), set[str]()
    for statement in body:
        bound |= {item.name for item in bindings_in(statement)}
        elsewhere |= {name for node in ast.walk(statement) if isinstance(node, ast.Nonlocal | ast.Global) for name in node.names}
    return bound - elsewhere


def bindings_in(statement: ast.AST, at: Moment | None = None) -> Iterator[Binding]:
    """What a statement binds in its own scope, and in those inside it that hold the moment `at`."""
    queue: list[ast.AST] = [statement]
    for node in queue:
        yield from _bound_by(node)
        if not isinstance(node, SCOPES) or (at is not None and start_of(node) <= at <= end_of(node)):
            queue.extend(ast.iter_child_nodes(node))


def _bound_by(node: ast.AST) -> Iterator[Binding]:
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
    elif type(node).__name__ == "TypeAlias":  # from Python 3.12 on
        yield from _targets([node.name], _bound(node))  # type: ignore[attr-defined]
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield Binding(alias.asname or alias.name.partition(".")[0], node, _bound(node))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield Binding(node.name, node, _bound(node))
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield Binding(node.name, node, start_of(node.body[0]))
        yield Binding(node.name, node.body[-1], (*end_of(node)[:2], 3))  # Python deletes it there
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        yield Binding(node.name, node, _bound(node))
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield Binding(node.rest, node, _bound(node))


def _targets(targets: Iterable[ast.expr], moment: Moment) -> Iterator[Binding]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _targets(target.elts, moment)
        elif isinstance(target, ast.Starred):
            yield from _targets([target.value], moment)
        elif name := spelled(target):
            yield Binding(name, target, moment)


def spelled(node: ast.AST) -> str:
    """A variable as text: `a`, `a.b`, and `a.b[]` for whatever item of it; "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := spelled(node.value)):
        return f"{owner}.{node.attr}"
    if isinstance(node, ast.Subscript) and (owner := spelled(node.value)):
        return f"{owner}[]"
    return ""


def start_of(node: ast.AST) -> Moment:
    return (*position(node), 0)


def end_of(node: ast.AST) -> Moment:
    return node.end_lineno, node.end_col_offset, 0  # type: ignore[attr-defined]


def _bound(node: ast.AST) -> Moment:
    return (*end_of(node)[:2], 1)
