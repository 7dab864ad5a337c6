"""Fills the holes of an edit's code with the captured text."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable

from .errors import InvalidResult
from .holes import fill_holes, holes_in, python_of
from .pattern import Bindings, first_line, shape
from .substitution import substituted
from .text import Source, lines_of, reindent


def fill(code: str, bindings: Bindings, source: Source) -> str:
    """`code` at indentation zero with each hole replaced by the text it captured, in parentheses only where they are needed.

    Raises:
        InvalidResult: no way of writing it out is Python.
    """
    template = python_of(code)
    values: dict[str, str] = {}  # of the holes that may need parentheses
    written: dict[str, str] = {}
    for hole in sorted(holes_in(code)):
        captured = bindings[hole]
        if isinstance(captured, tuple) and len(captured) == 1 and isinstance(captured[0], ast.arguments):
            written[hole] = ast.unparse(captured[0])  # a parameter list has no position of its own
            continue
        if isinstance(captured, tuple) and captured and isinstance(captured[0], ast.stmt):
            template = _fill_statements(template, hole, block_text(captured, source))
            continue
        if isinstance(captured, tuple):
            template, written[hole] = _fill_sequence(template, hole, captured, source)
        elif isinstance(captured, str):
            written[hole] = captured
        else:
            values[hole] = source.segment(captured)
            written[hole] = f"({values[hole]})"
    text = choose(lambda chosen: fill_holes(template, {**written, **chosen}), values, code)
    if _shape_of(text) != shape(substituted(code, bindings)):
        raise InvalidResult("the captured code reads differently where the edit puts it", where=text, nearest=code)
    return text


def choose(build: Callable[[dict[str, str]], str], values: dict[str, str], code: str) -> str:
    """Of the ways to write the values, the one with fewest parentheses that means what full parentheses mean.

    Args:
        build: makes the whole code; values that it is not given stand in parentheses.
        values: the plain text of each value.
        code: the edit's code, for the error.

    Raises:
        InvalidResult: no way of writing it out is Python.
    """
    # Parentheses cannot stand everywhere (an attribute's or a keyword's name, a slice): there, plain text is all there is.
    plain = {hole: text for hole, text in values.items() if text.isidentifier() or not _may_be_guarded(hole, build, values)}
    truth = _shape_of(build(plain))
    if truth is None:
        raise InvalidResult("the captured code does not fit where the edit puts it", where=build(values), nearest=code)
    chosen = dict(plain)
    for hole, text in values.items():
        if _shape_of(build({**chosen, hole: text})) == truth:
            chosen[hole] = text
    return build(chosen)


def _may_be_guarded(hole: str, build: Callable[[dict[str, str]], str], values: dict[str, str]) -> bool:
    names = {other: text for other, text in values.items() if text.isidentifier() and other != hole}
    others = {other: text for other, text in values.items() if other != hole}
    return _shape_of(build(names)) is not None or _shape_of(build(others)) is not None


def expression_of(code: str) -> str:
    """The code of an expression without comments before or behind it: what follows on its line would become a part of them."""
    told = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = lines_of(code)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type not in told]
    (first, begin), (last, end) = tokens[0].start, tokens[-1].end
    lines[last - 1] = lines[last - 1][:end]
    lines[first - 1] = lines[first - 1][begin:] if first != last else lines[first - 1][begin:end]
    return "".join(lines[first - 1 : last])


def argument_value(code: str) -> str:
    """`code` as it can stand behind `name=` in a call or signature."""
    code = expression_of(code)
    return choose(lambda chosen: f"_(_={chosen.get('code', f'({code})')})", {"code": code}, code)[len("_(_=") : -1]


def _shape_of(code: str) -> str | None:
    try:
        return shape(ast.parse(code))
    except SyntaxError:
        return None


def argument_text(node: ast.AST, source: Source) -> str:
    """The text of a call argument or sequence element, parenthesised where it would read differently on its own."""
    text = source.segment(node)
    if isinstance(node, ast.keyword):
        return text
    parsed = _shape_of(f"_({text})")
    call = ast.Expr(ast.Call(ast.Name("_", ast.Load()), [node], []))  # type: ignore[list-item]
    return text if parsed == shape(ast.Module([call], [])) else f"({text})"


def _fill_sequence(template: str, hole: str, captured: tuple[ast.AST, ...], source: Source) -> tuple[str, str]:
    text = ", ".join(argument_text(node, source) for node in captured)
    if not text:
        # An empty capture takes a neighbouring comma with it.
        name = re.escape(python_of(hole))
        template = re.sub(rf"\b{name}\b\s*,\s*|,\s*\b{name}\b|\b{name}\b", "", template)
    return template, text


def _fill_statements(template: str, hole: str, block: str) -> str:
    name = re.escape(python_of(hole))
    place = re.compile(rf"^([ \t]*){name}[ \t]*$", re.MULTILINE)
    if not place.search(template):
        raise InvalidResult(f"{hole} holds statements: it needs a line of its own", where=template)
    return place.sub(lambda match: reindent(block, match[1], "\n"), template)


def block_text(statements: tuple[ast.AST, ...], source: Source) -> str:
    """The text of consecutive statements at indentation zero, comments between them included."""
    line = first_line(statements[0])
    start, end = source.start(statements[0]), source.span(statements[-1])[1]
    lead = source.before_on_line(start, line)
    if lead.strip():
        return source.text[start:end]
    if source.text.startswith("elif", start):  # a statement of its own begins with `if`
        return reindent(lead + source.text[start + len("el") : end], "", "\n", strip=len(lead))
    return reindent(source.text[start - len(lead) : end], "", "\n", strip=len(lead))
