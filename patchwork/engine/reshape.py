"""Statements that cannot take a neighbour on a line of their own, written out so that they can.

`a; b`, `if a: return x` and `elif` are the formatting of code that reads the same one statement a line. libcst writes the lines
concerned out, and only those; the result counts only if its syntax tree is the same as before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import InvalidResult, SourceUnavailable
from .pattern import blocks, first_line, shape
from .text import Source

if TYPE_CHECKING:
    import libcst


class NeedsLines(Exception):
    """Raised while edits are located: the statement at `node` must be written out first."""

    def __init__(self, node: ast.stmt) -> None:
        super().__init__(node.lineno)
        self.node = node


def write_out(source: Source, function: ast.AST, node: ast.stmt) -> Source:
    """`source` with the lines around `node` (a statement inside `function`) written out.

    Raises:
        SourceUnavailable: libcst cannot read these lines.
        InvalidResult: writing them out would change their meaning.
    """
    first, last = _lines_around(source, function, node)
    start, end = source.line_start(first), source.line_start(last + 1)
    chunk = source.text[start:end]
    is_elif = source.text.startswith("elif", source.span(node)[0])
    text = source.text[:start] + _written_out(chunk, source, node.lineno - first + 1 if is_elif else 0) + source.text[end:]
    try:
        after = Source(text)
    except SourceUnavailable as error:  # the source was Python: too many levels of indentation
        raise InvalidResult(
            f"these lines cannot be written one statement a line: {error.what.rpartition(': ')[2]}",
            where=f"lines {first}-{last}",
            hint="anchor a statement that stands on its own line",
        ) from None
    if shape(after.tree) != shape(source.tree):
        raise InvalidResult(
            "these lines cannot be written one statement a line without a change of meaning",
            where=f"lines {first}-{last}",
            hint="anchor a statement that stands on its own line",
        )
    return after


def _lines_around(source: Source, function: ast.AST, node: ast.stmt) -> tuple[int, int]:
    """The smallest range of whole lines that holds `node`, its neighbours on those lines, and their header where it is there too.

    What is read on its own begins with an `if`: the range of an `elif` is that of the whole chain.
    """
    parents = {id(child): parent for parent in ast.walk(function) for child in ast.iter_child_nodes(parent)}
    first, last = first_line(node), node.end_lineno or node.lineno
    while True:
        block = next(b for b in blocks(function) if any(item is node for item in b))
        first, last = _joined(source, first, last)
        for item in block + block[::-1]:
            if first_line(item) <= last and (item.end_lineno or item.lineno) >= first:
                first, last = _joined(source, min(first, first_line(item)), max(last, item.end_lineno or item.lineno))
        owner = parents.get(id(node))
        while owner is not None and not isinstance(owner, ast.stmt):
            owner = parents.get(id(owner))
        begin = block[0].lineno
        shares_header = source.before_on_line(source.span(block[0])[0], begin).strip() != "" or source.continues(begin)
        is_elif = re.match(r"\s*elif\b", source.lines[first - 1]) is not None
        if owner is None or not (shares_header or is_elif):
            return first, last
        first, last = min(first, first_line(owner)), max(last, owner.end_lineno or owner.lineno)
        if owner is function:
            return first, last
        node = owner


def _joined(source: Source, first: int, last: int) -> tuple[int, int]:
    """The range with the lines that backslashes join to it."""
    while source.continues(first):
        first -= 1
    while source.continues(last + 1):
        last += 1
    return first, last


def _written_out(chunk: str, source: Source, elif_line: int) -> str:
    """The lines written out; the `elif` at a line of theirs (from 1; 0 for none) becomes an `else` with an `if` inside."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider

    class WriteOut(libcst.CSTTransformer):
        METADATA_DEPENDENCIES = (PositionProvider,)

        def leave_SimpleStatementLine(
            self, original_node: libcst.SimpleStatementLine, updated_node: libcst.SimpleStatementLine
        ) -> libcst.SimpleStatementLine | libcst.FlattenSentinel[libcst.SimpleStatementLine]:
            if len(updated_node.body) == 1 and not isinstance(updated_node.body[0].semicolon, libcst.Semicolon):
                return updated_node
            lines = _lines_of(updated_node.body, updated_node.trailing_whitespace)
            lines[0] = lines[0].with_changes(leading_lines=updated_node.leading_lines)
            return libcst.FlattenSentinel(lines)

        def leave_SimpleStatementSuite(
            self, original_node: libcst.SimpleStatementSuite, updated_node: libcst.SimpleStatementSuite
        ) -> libcst.IndentedBlock:
            return libcst.IndentedBlock(body=_lines_of(updated_node.body, updated_node.trailing_whitespace), indent=unit)

        def leave_If(self, original_node: libcst.If, updated_node: libcst.If) -> libcst.If:
            branch = updated_node.orelse
            if not isinstance(branch, libcst.If) or original_node.orelse is None:
                return updated_node
            if self.get_metadata(PositionProvider, original_node.orelse).start.line != elif_line + indented:
                return updated_node
            inner = branch.with_changes(leading_lines=[])
            return updated_node.with_changes(
                orelse=libcst.Else(leading_lines=branch.leading_lines, body=libcst.IndentedBlock(body=[inner], indent=unit))
            )

    indented = chunk[:1] in " \t"
    lead = re.match(r"[ \t]*", chunk)
    assert lead is not None
    unit = "\t" if "\t" in lead[0] else source.unit
    header = "if 1:" + source.newline
    try:
        module = libcst.parse_module(header + chunk if indented else chunk)
    except libcst.ParserSyntaxError as error:
        raise SourceUnavailable(
            f"libcst cannot read these lines: {error.message}", where=chunk, hint="anchor a statement on its own line"
        ) from None
    code = MetadataWrapper(module).visit(WriteOut()).code
    return code[len(header) :] if indented else code


def _lines_of(body: Sequence[libcst.BaseSmallStatement], trailing: libcst.TrailingWhitespace) -> list[libcst.SimpleStatementLine]:
    import libcst

    lines = [libcst.SimpleStatementLine([item.with_changes(semicolon=libcst.MaybeSentinel.DEFAULT)]) for item in body]
    lines[-1] = lines[-1].with_changes(trailing_whitespace=trailing)
    return lines
