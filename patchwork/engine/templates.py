"""Checks that a captured name still refers to the same variable where the edit's code uses it (macro hygiene).

The edit's code may bind a captured name before it writes the hole, by its own word or by another hole; it may put the hole into a
comprehension or an inner function that has a variable of that name; it may move statements that bind one.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator

from .errors import CaptureRebound
from .holes import hole_of, holes_in, many_of, python_of
from .locate import Function
from .patch import Edit
from .pattern import Captured, Match, position
from .scopes import LOOPS, SCOPES, Binding, Moment, Tree, bindings_in, names_in, start_of

_LEAVING = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Break, ast.Continue)


class Template:
    """The code of an edit at a match.

    Args:
        edit: its code has holes.
        match: what they captured.
        function: the target.
        place: the node in whose place, or beside which, the code will stand.
    """

    def __init__(self, edit: Edit, match: Match, function: Function, place: ast.AST) -> None:
        self._edit, self._match, self._function, self._place = edit, match, function, place
        self._code = ast.parse(python_of(edit.code))
        self._tree = Tree(self._code, self._resolved)
        self._bound = [item for statement in self._code.body for item in bindings_in(statement)]
        # Names that the anchor itself binds are exempt: the author wrote them out.
        anchors = [edit.anchor.pattern, edit.anchor.inside, edit.anchor.after, edit.anchor.before]
        self._known = {
            name for pattern in anchors if pattern and not pattern.rstrip().endswith(":") for name in _binders(pattern)
        }

    @functools.cached_property
    def _source(self) -> Tree:
        return Tree(self._function)

    @functools.cached_property
    def _moments(self) -> dict[int, Moment]:
        """By node of the target, when the name that it binds has its value."""
        begin = start_of(self._match.nodes[0])
        return {id(b.node): b.moment for statement in self._function.body for b in bindings_in(statement, begin)}

    def check(self, hole: str, names: Iterable[str]) -> None:
        """Raise CaptureRebound unless `hole`, which captured code that reads `names`, means the same at each of its places."""
        for spot in self._spots(hole):
            self._check_scopes(hole, spot)
            self._check_order(hole, spot, set(names))
        if self._edit.action == "replace":
            for other in sorted(holes_in(self._edit.code) - {hole}):
                self._check_carried(hole, other, set(names))

    def check_moved(self) -> None:
        """Raise CaptureRebound where statements that bind names, or leave the function, are moved into another one."""
        pattern = ast.parse(python_of(self._edit.anchor.pattern))
        for hole in sorted(holes_in(self._edit.code)):
            items = _statements(self._match.bindings[hole])
            moves = any(True for item in items for _ in bindings_in(item)) or any(_leaves(item) for item in items)
            was = {_depth(Tree(pattern), node) for node in _spots_in(pattern, hole)}
            if moves and any(_depth(self._tree, spot) not in was for spot in self._spots(hole)):
                raise CaptureRebound(
                    f"{hole} holds statements that bind names or leave the function, and the edit puts them into another one",
                    where=f"line {position(items[0])[0]}",
                    hint="keep them where they are, and put a call beside them",
                )

    def binds(self) -> frozenset[str]:
        """The names that the code itself spells and binds."""
        return frozenset(item.name for item in self._bound if hole_of(item.name) is None)

    def _spots(self, hole: str) -> list[ast.AST]:
        return _spots_in(self._code, hole)

    def _resolved(self, names: Iterable[str]) -> set[str]:
        """Bound names, with what was captured in place of holes."""
        found: set[str] = set()
        for name in names:
            hole = hole_of(name) or many_of(name)
            captured = self._match.bindings.get(hole) if hole else None
            if captured is None:
                found.add(name)
            elif isinstance(captured, str):
                found.add(captured)
            else:
                for item in captured if isinstance(captured, tuple) else (captured,):
                    found |= {node.arg for node in ast.walk(item) if isinstance(node, ast.arg)} | set(names_in(item))
        return found

    def _check_scopes(self, hole: str, spot: ast.AST) -> None:
        parts = nodes_in(self._match.bindings[hole])
        inside = {id(child) for part in parts for child in ast.walk(part)}
        for item in [child for part in parts for child in ast.walk(part) if isinstance(child, ast.Name)]:
            was, here = self._source.owner(item.id, item), self._tree.owner(item.id, spot)
            if id(was) in inside:
                continue  # what the captured code binds for itself, such as a comprehension in it, goes along with it
            if (was is not self._source.owner(item.id, self._place)) if here is None else was is None:
                raise CaptureRebound(
                    f"{hole} captures {item.id} at line {position(item)[0]}, but where the edit uses it that is a variable of "
                    "another scope (a comprehension, a lambda or an inner function)",
                    where=f"line {position(self._place)[0]}",
                    hint="anchor a place in the same scope, or use another name in the edit's code",
                )

    def _check_order(self, hole: str, spot: ast.AST, names: set[str]) -> None:
        for item in self._bound:
            binder = hole_of(item.name)
            bound = self._resolved([item.name]) & names
            if not bound or item.moment >= start_of(spot) or binder == hole or (binder is None and item.name in self._known):
                continue
            captured = self._nodes_of(hole)
            earlier = [self._moments.get(id(node)) for node in self._nodes_of(binder)] if binder else []
            if not any(moment is not None and all(moment < start_of(node) for node in captured) for moment in earlier):
                name = min(bound)
                raise CaptureRebound(
                    f"{hole} captures {name} at line {position(captured[0])[0]}, and the edit's own code binds {name} before it "
                    f"writes {hole}",
                    where=ast.unparse(self._code).splitlines()[0],
                    hint="write the hole first, keep its value in a variable, or use another name in the edit's code",
                )

    def _check_carried(self, hole: str, other: str, names: set[str]) -> None:
        """Code that is carried over and binds what `hole` reads keeps its place before or behind it."""
        items = nodes_in(self._match.bindings[other])
        again = [item for node in items for item in bindings_in(node) if item.name in names]
        nodes = self._nodes_of(hole)
        if not again or not nodes:
            return
        begin, end = start_of(items[0]), start_of(items[-1])
        was = {start_of(node) > end for node in nodes if not begin <= start_of(node) <= end}
        pairs = [(spot, place) for spot in self._spots(hole) for place in self._spots(other)]
        now = {start_of(spot) > start_of(place) for spot, place in pairs}
        blocks = isinstance(items[0], ast.stmt)
        if now - was or (blocks and len(was) > 1) or (blocks and self._loops_back(pairs, nodes, items[0])):
            line = position(nodes[0])[0]
            raise rebound(hole, again[0], line)

    def _loops_back(self, pairs: Iterable[tuple[ast.AST, ast.AST]], nodes: list[ast.AST], block: ast.AST) -> bool:
        """Whether the hole is written in a loop with statements that bind its name, though it was captured outside of it."""
        once = any(not any(_in_body(loop, node, self._source) for node in nodes) for loop in _loops_above(self._source, block))
        return once and any(_in_body(loop, spot, self._tree) for spot, place in pairs for loop in _loops_above(self._tree, place))

    def _nodes_of(self, hole: str) -> list[ast.AST]:
        return [node for place in self._match.occurrences[hole] if not isinstance(place, str) for node in nodes_in(place)]


def rebound(hole: str, again: Binding, captured: int) -> CaptureRebound:
    """The error for a captured name that gets another value on the way."""
    name = again.name.replace("[]", "[...]")
    return CaptureRebound(
        f"{hole} captures {name} at line {captured}, but {name} is bound again at line {again.moment[0]}, before the edit's code "
        "uses it",
        where=f"lines {min(captured, again.moment[0])}-{max(captured, again.moment[0])}",
        hint="anchor closer to the use, or keep the value in a variable of its own where it is captured",
    )


def _spots_in(code: ast.AST, hole: str) -> list[ast.AST]:
    name = python_of(hole)
    return [node for node in ast.walk(code) if isinstance(node, ast.Name) and node.id == name]


def nodes_in(place: Captured) -> list[ast.AST]:
    """The pieces of code that a hole captured, those that have a position."""
    items = place if isinstance(place, tuple) else (place,)
    return [node for node in items if isinstance(node, ast.AST) and hasattr(node, "lineno")]


def _statements(place: Captured) -> list[ast.stmt]:
    return [node for node in nodes_in(place) if isinstance(node, ast.stmt)]


def _binders(pattern: str) -> set[str]:
    """The names that a pattern spells as something bound, in whatever scope of it."""
    code = ast.parse(python_of(pattern))
    found = {item.name for node in ast.walk(code) if isinstance(node, ast.stmt) for item in bindings_in(node)}
    for node in ast.walk(code):
        if isinstance(node, ast.comprehension):
            found |= set(names_in(node.target))
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def _leaves(statement: ast.stmt) -> bool:
    queue: list[ast.AST] = [statement]
    for node in queue:
        if isinstance(node, _LEAVING):
            return True
        if not isinstance(node, SCOPES):
            queue.extend(ast.iter_child_nodes(node))
    return False


def _depth(tree: Tree, node: ast.AST) -> int:
    return sum(isinstance(parent, SCOPES) for parent, _ in tree.above(node))


def _loops_above(tree: Tree, node: ast.AST) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    return (parent for parent, _ in tree.above(node) if isinstance(parent, LOOPS))


def _in_body(loop: ast.For | ast.AsyncFor | ast.While, node: ast.AST, tree: Tree) -> bool:
    return any(parent is loop and any(child is item for item in loop.body) for parent, child in tree.above(node))
