"""A module's source as text: bytes in and out unchanged, lines and offsets as the parser counts them, indentation."""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

from .errors import InvalidResult, SourceUnavailable

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def decode(source: bytes) -> tuple[str, str]:
    """Text of `source` and the codec (`utf-8-sig` where a byte order mark leads) that gives the same bytes back."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceUnavailable(f"the source cannot be decoded: {error}") from None
    return text, codecs.lookup(encoding).name


def encode(text: str, encoding: str) -> bytes:
    """The bytes of `text`; raises InvalidResult for a character that the file's encoding does not have."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise InvalidResult(
            f"the file is {encoding}, which cannot hold {text[error.start : error.end]!r}",
            hint="write it as an escape, such as '\\u2026'",
        ) from None


def parse(text: str) -> ast.Module:
    """The syntax tree; what Python warns of in upstream code is not the user's to hear at each `apply()`.

    Raises:
        SyntaxError: it is not Python.
        SourceUnavailable: it is nested too deeply.
    """
    with warnings.catch_warnings(), not_too_deep("the source"):
        warnings.simplefilter("ignore")
        return ast.parse(text)


def compiled(source: str | bytes | ast.Module, filename: str) -> types.CodeType:
    """The code of a module, its warnings left to the real import; raises as `parse` does."""
    with warnings.catch_warnings(), not_too_deep("the source"):
        warnings.simplefilter("ignore")
        code: types.CodeType = compile(source, filename, "exec", dont_inherit=True)
        return code


@contextmanager
def not_too_deep(what: str) -> Iterator[None]:
    """Where Python's stack does not suffice, raise SourceUnavailable that says so of `what`."""
    try:
        yield
    except (RecursionError, MemoryError):  # what the parser's own stack cannot hold is a MemoryError
        raise SourceUnavailable(
            f"{what} is nested too deeply for Python's recursion limit", hint="sys.setrecursionlimit() raises it"
        ) from None


def lines_of(text: str) -> list[str]:
    """The lines of `text` with their endings, split where Python's parser splits them (not at form feed or U+2028)."""
    lines: list[str] = _LINE.findall(text)
    return lines


class Source:
    """Text with its syntax tree; `tree` is that of `text` where it is parsed already.

    Raises:
        SourceUnavailable: the running Python cannot parse it; names the line.
    """

    def __init__(self, text: str, tree: ast.Module | None = None) -> None:
        if not isinstance(text, str):
            raise SourceUnavailable(f"the source is {text!r:.80}, neither text nor bytes", hint="pass the text of a module")
        self.text = text
        self.lines = lines_of(text)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        try:
            self.tree = parse(text) if tree is None else tree
        except (SyntaxError, ValueError) as error:
            number = getattr(error, "lineno", None)
            raise SourceUnavailable(
                f"the source is not valid Python here: {getattr(error, 'msg', error)}",
                where=f"line {number}" if number else "",
                hint=_advice(text),
            ) from None

    @cached_property
    def newline(self) -> str:
        """The line ending of the first line that has one."""
        ending = re.search(r"\r\n|\r|\n", self.text)
        return ending[0] if ending else "\n"

    @cached_property
    def unit(self) -> str:
        """What a block is indented by, deeper than its header: that of the first one."""
        return _unit(self.tree, self.lines) or "    "

    def offset(self, line: int, column: int) -> int:
        """Index into `text` of a 1-based line and a UTF-8 byte column, as `ast` counts them."""
        content = self.lines[line - 1]
        if not content.isascii():
            column = len(content.encode()[:column].decode())
        return self._starts[line - 1] + column

    def line_start(self, line: int) -> int:
        """Index where a 1-based line begins (one past the last line: where the text ends)."""
        return self._starts[line - 1]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Start and end index of a node that has a position."""
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def start(self, node: ast.AST) -> int:
        """Start index of a node, the `@` of its first decorator included."""
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        return self.text.rindex("@", 0, self.span(decorators[0])[0]) if decorators else self.span(node)[0]

    def segment(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def before_on_line(self, offset: int, line: int) -> str:
        """What stands between the start of `line` and `offset`."""
        return self.text[self._starts[line - 1] : offset]

    def after_on_line(self, offset: int, line: int) -> str:
        """What stands between `offset` and the end of `line`, the line ending included."""
        return self.text[offset : self._starts[line]]

    def continues(self, line: int) -> bool:
        """Whether a backslash at the end of the line before makes `line` a part of it."""
        before = self.lines[line - 2].rstrip("\r\n") if line > 1 else ""
        return before.endswith("\\") and not before.lstrip().startswith("#")

    def indent(self, line: int) -> str:
        """The white space that `line` begins with."""
        content = self.lines[line - 1]
        return content[: len(content) - len(content.lstrip(" \t\f"))]


def _advice(text: str) -> str:
    first = next((line for line in lines_of(text) if line.strip() and not line.lstrip().startswith("#")), "")
    if first[:1].isspace():
        return "it is indented as a whole: pass textwrap.dedent(source)"
    return "check that the file is intact and that this Python is new enough for it"


def _unit(tree: ast.AST, lines: list[str]) -> str:
    """The white space that the first block below a header on another line has more than the header; "" where there is none."""
    for node in ast.walk(tree):
        body = [case.pattern for case in node.cases] if isinstance(node, ast.Match) else getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and body[0].lineno > node.lineno:
            header, inner = (re.match(r"[ \t]*", lines[line - 1]) for line in (node.lineno, body[0].lineno))
            if header is not None and inner is not None and inner[0].startswith(header[0]):
                return inner[0][len(header[0]) :]
    return ""


def in_unit(code: str, python: str, unit: str) -> str:
    """`code` with each level of its indentation written as `unit`; `python` is the same with its holes made names."""
    lines = lines_of(code)
    own = _unit(parse(python), lines_of(python)) if len(lines) > 1 else ""
    if own in ("", unit):
        return code
    inside = _inside_strings(python)
    for number, line in enumerate(lines):
        depth = 0
        while number + 1 not in inside and line.startswith(own, depth * len(own)):
            depth += 1
        lines[number] = unit * depth + line[depth * len(own) :]
    return "".join(lines)


def reindent(code: str, indent: str, newline: str, *, strip: int = 0) -> str:
    """`code` with `strip` characters of indentation taken off and `indent` put on, strings that span lines left alone."""
    inside = _inside_strings(code)
    out = []
    for number, line in enumerate(_LINE.findall(code), start=1):
        body = line.rstrip("\r\n")
        ending = newline if line != body else ""  # in a string too: Python reads every line ending as \n
        if number in inside:
            out.append(body + ending)
            continue
        body = body[strip:] if not body[:strip].strip() else body
        out.append((indent + body if body.strip() else "") + ending)
    return "".join(out)


def _inside_strings(code: str) -> set[int]:
    """Lines (from 1) that begin inside a string."""
    inside: set[int] = set()
    opened: list[int] = []
    starts = {getattr(tokenize, name) for name in ("FSTRING_START", "TSTRING_START") if hasattr(tokenize, name)}
    ends = {getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name)}
    # An outer block makes code that is indented as a whole, or ends early, readable to the tokenizer.
    for token in tokenize.generate_tokens(io.StringIO("if 1:\n" + reopen(code)).readline):
        line = token.start[0] - 1
        if token.type == tokenize.STRING:
            inside.update(range(line + 1, token.end[0]))
        elif token.type in starts:
            opened.append(line)
        elif token.type in ends:
            inside.update(range(opened.pop() + 1, token.end[0]))
    return inside


def reopen(code: str) -> str:
    """`code` indented so that it can stand in a block whatever its own first line's indentation."""
    first = code.lstrip("\r\n")
    return code if first[:1] in " \t" else "".join(" " + line for line in _LINE.findall(code))
