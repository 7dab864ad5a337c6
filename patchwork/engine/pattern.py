"""Matches code with holes against a function's syntax tree.

Works on the standard library's `ast`, which is what "the same code" means here: quotes, parentheses, line breaks and comments are
not in the tree, operand order and spelling (`not a in b` against `a not in b`) are. Keywords of a call match in any order.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .holes import completed, hole_of, is_free, many_of, python_of

Captured = ast.AST | str | tuple[ast.AST, ...]
# What each hole stands for, at each of its places in the pattern; all are the same code, unless the hole is free.
Occurrences = dict[str, tuple[Captured, ...]]
Bindings = dict[str, Captured]

# Fields that carry no meaning of their own: load/store follows from the place, `u""` and type comments from the spelling.
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores"}
# Some releases of Python leave `ctx=Load()` out of a dump, others write it.
_CONTEXT = re.compile(r"(?:, )?\bctx=(?:Load|Store|Del)\(\)")


@dataclass(frozen=True)
class Match:
    """One place where a pattern fits.

    Attributes:
        nodes: the matched statements, or the one matched expression.
        block: for statements the list that holds them, else None.
        occurrences: what each hole stands for, place by place.
    """

    nodes: tuple[ast.AST, ...]
    occurrences: Occurrences
    block: list[ast.stmt] | None = None

    @property
    def bindings(self) -> Bindings:
        """What each hole stands for."""
        return {hole: places[0] for hole, places in self.occurrences.items()}

    @property
    def line(self) -> int:
        """First line of the match, counted from 1 in the text that was parsed."""
        return first_line(self.nodes[0])


def first_line(node: ast.AST) -> int:
    """First line of a node, its decorators included."""
    lines: list[int] = [node.lineno] if hasattr(node, "lineno") else []
    lines += [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return min(lines)


@functools.lru_cache(maxsize=512)
def _parsed(pattern: str) -> ast.expr | tuple[ast.stmt, ...]:
    body = ast.parse(python_of(pattern)).body
    if len(body) == 1 and isinstance(body[0], ast.Expr) and many_in(body[0]) is None:
        return body[0].value
    return tuple(body)


def find(pattern: str, function: ast.AST, bound: Occurrences | None = None) -> list[Match]:
    """All matches of `pattern` in the body of `function` (nested functions included), in the order of the text.

    `bound` is what its holes stand for already.
    """
    parsed = _parsed(pattern)
    found: list[Match] = []
    if isinstance(parsed, ast.expr):
        for statement in getattr(function, "body", ()):
            for node in ast.walk(statement):
                if isinstance(node, ast.expr) and (bindings := _node(parsed, node, bound or {})) is not None:
                    found.append(Match((node,), bindings))
    else:
        for block in blocks(function):
            found.extend(_find_in_block(parsed, block, bound or {}))
    return sorted(found, key=lambda match: position(match.nodes[0]))


def find_headers(header: str, function: ast.AST, bound: Occurrences | None = None) -> list[Match]:
    """All compound statements in `function` with this header; the nodes of a match are the body below it.

    Decorators, a return annotation and other branches (`else`, `except`, `finally`) may be there or not.
    """
    [wanted] = ast.parse(completed(header)).body
    ignored = {*_IGNORED, "body", "orelse", "handlers", "finalbody", "decorator_list", "returns"}
    found = []
    for block in blocks(function):
        for statement in block:
            if type(statement) is type(wanted):
                bindings = _fields(wanted, statement, dict(bound or {}), ignored)
                if bindings is not None:
                    found.append(Match(tuple(statement.body), bindings))  # type: ignore[attr-defined]
    return sorted(found, key=lambda match: position(match.nodes[0]))


def matches_all(pattern: Sequence[ast.stmt], statements: Sequence[ast.stmt]) -> bool:
    """Whether a parsed pattern is exactly these statements."""
    return _sequence(pattern, statements, {}) is not None


def tells(pattern: str) -> bool:
    """Whether finding `pattern` says something: a lone name, constant, hole or `return None` stands in many a function."""
    parsed = _parsed(pattern)
    if isinstance(parsed, ast.Name | ast.Constant):
        return False
    nodes = [node for item in (parsed if isinstance(parsed, tuple) else (parsed,)) for node in ast.walk(item)]
    words = [value for node in nodes for _, value in ast.iter_fields(node) if isinstance(value, str)]
    numbers = [node for node in nodes if isinstance(node, ast.Constant) and type(node.value) in (int, float, complex, bytes)]
    return bool(numbers) or any(hole_of(word) is None and many_of(word) is None for word in words)


def position(node: ast.AST) -> tuple[int, int]:
    """Line and column where a node begins, its decorators included; sortable."""
    return first_line(node), getattr(node, "col_offset", 0)


def _find_in_block(pattern: tuple[ast.stmt, ...], block: list[ast.stmt], bound: Occurrences) -> Iterator[Match]:
    for start in range(len(block)):
        for bindings, size in _prefixes(pattern, block[start:], bound):
            if size:  # the shortest run that fits
                yield Match(tuple(block[start : start + size]), bindings, block)
                break


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every statement list inside `node`: bodies, else branches, handlers, cases, nested functions."""
    queue = [node]  # statements, and what holds some: none are inside an expression
    for child in queue:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(child, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block
                queue.extend(block)
        for name in ("handlers", "cases"):
            queue.extend(getattr(child, name, ()))


def _node(pattern: ast.AST, node: ast.AST, bindings: Occurrences) -> Occurrences | None:
    """Bindings extended so that `pattern` equals `node`, or None."""
    if isinstance(pattern, ast.Name) and (hole := hole_of(pattern.id)):
        # `*rest` is no expression: `f($X)` is a call with exactly one argument.
        return _bind(hole, node, bindings) if isinstance(node, ast.expr) and not isinstance(node, ast.Starred) else None
    if type(pattern) is not type(node):
        return None
    if isinstance(pattern, ast.Constant):
        same = type(pattern.value) is type(node.value) and repr(pattern.value) == repr(node.value)  # type: ignore[attr-defined]
        return bindings if same else None
    if isinstance(pattern, ast.Call):
        return _call(pattern, node, bindings)  # type: ignore[arg-type]
    if isinstance(pattern, ast.arguments) and (many := many_parameters(pattern)):
        return _bind(many, (node,), bindings)
    return _fields(pattern, node, bindings, _IGNORED)


def _fields(pattern: ast.AST, node: ast.AST, bindings: Occurrences, ignored: set[str]) -> Occurrences | None:
    for name, wanted in ast.iter_fields(pattern):
        if name in ignored:
            continue
        found = _field(wanted, getattr(node, name, None), bindings)
        if found is None:
            return None
        bindings = found
    return bindings


def many_parameters(pattern: ast.arguments) -> str | None:
    """The `$$$X` that a parameter list consists of, or None."""
    alone = [argument.arg for argument in ast.walk(pattern) if isinstance(argument, ast.arg)]
    return many_of(alone[0]) if len(alone) == 1 and len(pattern.args) == 1 else None


def _field(wanted: object, given: object, bindings: Occurrences) -> Occurrences | None:
    if isinstance(wanted, ast.AST):
        return _node(wanted, given, bindings) if isinstance(given, ast.AST) else None
    if isinstance(wanted, list):
        return _sequence(wanted, given, bindings) if isinstance(given, list) else None
    if isinstance(wanted, str) and (hole := hole_of(wanted)):
        return _bind(hole, given, bindings) if isinstance(given, str) else None
    return bindings if type(wanted) is type(given) and wanted == given else None


def many_in(item: object) -> str | None:
    """The `$$$X` that an element of a sequence consists of, or None."""
    if isinstance(item, ast.Expr):
        item = item.value
    return many_of(item.id) if isinstance(item, ast.Name) else None


def _sequence(pattern: Sequence[object], items: Sequence[object], bindings: Occurrences) -> Occurrences | None:
    """Bindings extended so that `pattern` is all of `items`, or None."""
    return next((found for found, _ in _prefixes(pattern, items, bindings, whole=True)), None)


def _prefixes(
    pattern: Sequence[object], items: Sequence[object], bindings: Occurrences, *, whole: bool = False
) -> Iterator[tuple[Occurrences, int]]:
    """The ways in which `pattern` fits the first of `items` (`whole`: all of them), and how many these are; shortest first."""
    at = 0
    while at < len(pattern) and many_in(pattern[at]) is None:
        if at == len(items) or (found := _field(pattern[at], items[at], bindings)) is None:
            return
        bindings, at = found, at + 1
    if at == len(pattern):
        if not whole or at == len(items):
            yield bindings, at
        return
    many, rest = many_in(pattern[at]), pattern[at + 1 :]
    assert many is not None
    most = len(items) - at - sum(1 for item in rest if many_in(item) is None)
    for size in range(most if whole and not rest else 0, most + 1):
        held = _bind(many, tuple(item for item in items[at : at + size] if isinstance(item, ast.AST)), bindings)
        if held is not None:
            for found, more in _prefixes(rest, items[at + size :], held, whole=whole):
                yield found, at + size + more


def _call(pattern: ast.Call, node: ast.Call, bindings: Occurrences) -> Occurrences | None:
    """Match a call: positionals in order, keywords in any order; `$$$X` also takes every unlisted keyword and `**kw`."""
    many = next((name for item in pattern.args if (name := many_in(item))), "")
    # What `$$$X` holds is known only when the keywords are matched; until then an earlier capture of that name is set aside.
    earlier = {many: bindings[many]} if many in bindings else {}
    found = _node(pattern.func, node.func, {hole: held for hole, held in bindings.items() if hole != many})
    if found is None or (found := _sequence(pattern.args, node.args, found)) is None:
        return None
    rest = list(node.keywords)
    # Keywords written out are looked up first, so that `$K=$V` cannot take one that another keyword needs.
    for wanted in sorted(pattern.keywords, key=lambda keyword: keyword.arg is not None and hole_of(keyword.arg) is not None):
        for given in rest:
            if (wanted.arg is None) == (given.arg is None) and (held := _keyword(wanted, given, found)) is not None:
                found = held
                rest.remove(given)
                break
        else:
            return None
    if not many:
        return found if not rest else None
    positionals = found.pop(many)[0 if is_free(many) else -1]
    assert isinstance(positionals, tuple)
    return _bind(many, (*positionals, *rest), {**found, **earlier})


def _keyword(wanted: ast.keyword, given: ast.keyword, bindings: Occurrences) -> Occurrences | None:
    found = _field(wanted.arg, given.arg, bindings)
    return None if found is None else _node(wanted.value, given.value, found)


def _bind(hole: str, value: object, bindings: Occurrences) -> Occurrences | None:
    assert isinstance(value, ast.AST | str | tuple)
    held = bindings.get(hole, ())
    if held and not is_free(hole) and not same_code(held[0], value):
        return None
    # A free hole stands for its last place, as it did for any other before.
    return {**bindings, hole: (value, *held) if is_free(hole) else (*held, value)}


def same_code(one: Captured, other: Captured) -> bool:
    """Whether two captures are the same code; an identifier equals a plain name spelled like it."""
    return _dumped(one) == _dumped(other)


def _dumped(value: Captured) -> object:
    if isinstance(value, tuple):
        keywords = sorted(shape(item) for item in value if isinstance(item, ast.keyword))
        return tuple(_dumped(item) for item in value if not isinstance(item, ast.keyword)), tuple(keywords)
    if isinstance(value, ast.Name):
        return value.id
    return shape(value) if isinstance(value, ast.AST) else value


def shape(node: ast.AST | Sequence[ast.AST]) -> str:
    """A node's meaning as text: equal shapes are the same code whatever their formatting."""
    if isinstance(node, ast.AST):
        return _CONTEXT.sub("", ast.dump(node))
    return "; ".join(shape(item) for item in node)
