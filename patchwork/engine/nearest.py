"""A required anchor missed: what comes closest, and where did the code go?"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from .errors import AnchorMissing, AnchorMoved
from .holes import python_of
from .locate import Function, functions
from .pattern import blocks, find, first_line
from .text import Source

_WORTH_SHOWING = 0.45


def missing(pattern: str, source: Source, function: Function, qualname: str) -> AnchorMissing:
    """The error for a required anchor that matches nowhere in `function`."""
    what = f"required anchor not found: {_one_line(pattern)}"
    where = f"{qualname}, lines {first_line(function)}-{function.end_lineno}"
    elsewhere = [
        (name, match.line) for name, other in functions(source.tree) if name != qualname for match in find(pattern, other)
    ]
    near = closest(pattern, source, function)
    if elsewhere:
        name, line = elsewhere[0]
        more = f" (and in {len(elsewhere) - 1} more)" if len(elsewhere) > 1 else ""
        return AnchorMoved(
            what,
            where=where,
            nearest=f"moved to {name}, line {line}{more}" + (f"\nin the target: {near}" if near else ""),
            hint=f"target {name}, or write the anchor as the target has it now",
        )
    return AnchorMissing(
        what,
        where=where,
        nearest=near or "nothing alike",
        hint="compare with the release the patch was written for; narrow `versions`, or add the new form with one_of(...)",
    )


def closest(pattern: str, source: Source, function: Function) -> str:
    """The statement of `function` most like `pattern`, as `line N: text`; "" where none is alike."""
    wanted = _normal(ast.parse(python_of(pattern)))
    best, found = _WORTH_SHOWING, ""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    for line, text in _candidates(function):
        matcher.set_seq1(text)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, found = ratio, f"line {line}: {_one_line(_source_line(source, line, text))}"
    return found


def _candidates(function: Function) -> Iterator[tuple[int, str]]:
    """Each statement's own part (a compound statement by its header), and each call, with its line."""
    for block in blocks(function):
        for statement in block:
            yield first_line(statement), _normal(statement)
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield node.lineno, _normal(node)


def _normal(node: ast.AST) -> str:
    return ast.unparse(node)[:400]


def _source_line(source: Source, line: int, text: str) -> str:
    return source.lines[line - 1].strip() if len(text) > 160 else text


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 160 else joined[:157] + "..."
