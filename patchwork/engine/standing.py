"""Recognises a change that the source has already."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .errors import PartlyNative
from .filling import fill
from .holes import hole_of, many_of, python_of
from .locate import Function
from .narrowing import places
from .patch import Anchor, Edit, Parameter
from .pattern import Match, find, matches_all, shape, tells
from .splicing import call_of, statements_of
from .text import Source


def stands(edit: Edit, matches: list[Match], source: Source, function: Function, beside: Sequence[str] = ()) -> str:
    """Where the source already is as the edit makes it, in words; "" where it is not.

    `beside` is the code that other edits insert: it may stand between a match and what this one inserts.

    Raises:
        PartlyNative: at some of the matches it is, and at others not.
    """
    if edit.action == "remove":
        return ""
    if edit.action.startswith("insert"):
        there = [_is_inserted(edit, match, source, function, beside) for match in matches]
        line = next((match.line for match, done in zip(matches, there, strict=True) if done), 0)
    else:
        made = _made(edit, function, matched=bool(matches))
        if not made:
            return ""
        inside = {id(child) for match in made for node in match.nodes for child in ast.walk(node)}
        there = [id(match.nodes[0]) in inside for match in matches] or [True]
        line = made[0].line
    if any(there) and not all(there):
        lines = [match.line for match, done in zip(matches, there, strict=True) if done]
        raise PartlyNative(
            f"the source has what {edit.action} makes at some matches of its anchor only: {edit.anchor.pattern}",
            where=f"there already at lines {', '.join(map(str, lines))}; {len(matches)} matches",
            hint="look at the release and narrow the anchor, or `versions`",
        )
    return told(line, edit.code if edit.action != "set_argument" else f"{edit.name}={edit.code}") if any(there) else ""


def _made(edit: Edit, function: Function, *, matched: bool) -> list[Match]:
    """The places that look like the edit's result, as many as there must be; none where finding them would prove nothing.

    A match proves nothing if the result uses no name or constant beyond those of the anchor: `foo(x)` is found in
    `foo(x) + 1`, and in whatever upstream makes of that; `a in b` in `not a in b`. It proves something where the anchor is a
    part of the result: `foo(x)` in `-foo(x)`.
    """
    anchor, pattern = edit.anchor, made_by(edit)
    if not (matched or tells(pattern)) or not (_is_around(pattern, anchor.pattern) or _words(pattern) - _words(anchor.pattern)):
        return []
    made = places(Anchor(pattern, inside=anchor.inside, after=anchor.after, before=anchor.before), function)
    return made if len(made) >= (anchor.count or anchor.at_least or 1) else []


def _is_around(pattern: str, part: str) -> bool:
    """Whether `part` is in `pattern`, and not all of it."""
    whole = ast.parse(python_of(pattern))
    size = sum(1 for statement in whole.body for _ in ast.walk(statement.value if isinstance(statement, ast.Expr) else statement))
    return any(sum(1 for node in match.nodes for _ in ast.walk(node)) < size for match in find(part, whole))


def _words(pattern: str) -> set[tuple[str, str, str]]:
    """The names and constants that a pattern spells, each with the part that it plays."""
    found = set()
    for node in ast.walk(ast.parse(python_of(pattern))):
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.Constant) and name == "value":
                found.add(("Constant", type(value).__name__, repr(value)))
            elif isinstance(value, str) and hole_of(value) is None and many_of(value) is None:
                found.add((type(node).__name__, name, value))
    return found


def told(line: int, code: str) -> str:
    """A line and the code in it, cut to a reasonable length."""
    words = " ".join(code.split())
    return f"line {line}: {words if len(words) <= 100 else words[:97] + '...'}"


def made_by(edit: Edit) -> str:
    """The pattern of what an edit leaves behind: of an insert the inserted code."""
    if edit.action != "set_argument":
        return edit.code
    tree = ast.parse(python_of(edit.anchor.pattern))
    call = call_of(tree.body[0], edit.anchor.pattern)
    value = ast.parse(python_of(edit.code), mode="eval").body
    call.keywords = [keyword for keyword in call.keywords if keyword.arg != edit.name]
    call.keywords.append(ast.keyword(edit.name, value))
    return ast.unparse(tree)


def starts_with(body: list[ast.stmt], code: str, beside: Sequence[str] = ()) -> bool:
    """Whether a function's body begins, below its docstring and what other edits insert, with the statements of `code`."""
    first = body[0]
    skip = int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))
    return _stands_at(ast.parse(python_of(code)).body, body, skip, beside, before=False)


def _is_inserted(edit: Edit, match: Match, source: Source, function: Function, beside: Sequence[str]) -> bool:
    """Whether the statements that an insert would add stand beside the match already."""
    statements, block = statements_of(edit, match, function)
    wanted = ast.parse(fill(edit.code, match.bindings, source)).body
    start = next(index for index, item in enumerate(block) if item is statements[0])
    before = edit.action == "insert_before"
    return _stands_at(wanted, block, start if before else start + len(statements), beside, before=before)


def _stands_at(wanted: list[ast.stmt], block: list[ast.stmt], at: int, beside: Sequence[str], *, before: bool) -> bool:
    """Whether `wanted` ends (or begins) at index `at` of a block, where code of `beside` that stands there is passed by."""
    while True:
        if shape(_window(block, at, len(wanted), before)) == shape(wanted):
            return True
        passed = (len(found) for code in beside if (found := _window_like(code, block, at, before)))
        step = next(passed, 0)
        if not step:
            return False
        at += -step if before else step


def _window(block: list[ast.stmt], at: int, size: int, before: bool) -> list[ast.stmt]:
    return block[max(0, at - size) : at] if before else block[at : at + size]


def _window_like(code: str, block: list[ast.stmt], at: int, before: bool) -> list[ast.stmt]:
    pattern = ast.parse(python_of(code)).body
    window = _window(block, at, len(pattern), before)
    return window if matches_all(pattern, window) else []


def has_default(change: Parameter, arguments: ast.arguments) -> bool:
    """Whether the parameter that stands already has the default that the patch would give it."""
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    defaults = {a.arg: default for a, default in (*with_default, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))}
    found = defaults.get(change.name)
    return found is not None and shape(found) == shape(ast.parse(change.default.strip(), mode="eval").body)
