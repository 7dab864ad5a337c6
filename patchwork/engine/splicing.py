"""Turns a change and its matches into splices: a range of the text and what replaces it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .errors import InvalidResult
from .filling import argument_value, expression_of, fill
from .holes import python_of
from .locate import Function
from .patch import AtStart, Edit, Parameter
from .pattern import Match, blocks, first_line, position, shape
from .reshape import NeedsLines
from .text import Source, in_unit, reindent


@dataclass(frozen=True)
class Splice:
    """`text[start:end]` gives way to `text`. `guarded` is the same in parentheses, where that may be needed.

    `inserted` is the code of whole statements that the result must contain. `following` is the text where a splice of that kind
    stands at the same place already. `adds` is the name that there may be once. `block` is where the block of the statements
    concerned begins; `taken`, of a removal: how many statements the block holds, and how many go; `alone` is the text where
    nothing is left of it.
    """

    start: int
    end: int
    text: str
    line: int
    action: str
    guarded: str | None = None
    inserted: str = ""
    following: str | None = None
    block: int = -1
    taken: tuple[int, int] | None = None
    alone: str = ""
    adds: str = ""

    def repeats(self, other: Splice) -> bool:
        """Whether two splices add the same parameter, or argument of one call."""
        return self.adds != "" and (self.start, self.adds) == (other.start, other.adds)

    def excludes(self, other: Splice) -> bool:
        """Whether two splices, this one not the later of them, cannot both be made."""
        same = (self.start, self.end) == (other.start, other.end)
        if self.repeats(other) or (other.start < self.end and not (self.following and other.following and same)):
            return True
        # What goes behind the last statement of a block lies behind what takes the block as a whole, too.
        return self.start < other.block < self.end and self.block != other.block


def apply_splices(text: str, splices: Iterable[Splice], guarded: frozenset[int] = frozenset()) -> str:
    """`text` with all splices made; those whose index is in `guarded` in parentheses."""
    ordered = sorted(enumerate(splices), key=lambda item: (*_order(item[1]), item[0]))
    out: list[str] = []
    at, joins = 0, -1
    left = {splice.block: splice.taken[0] for _, splice in ordered if splice.taken is not None}
    for index, splice in ordered:
        out.append(text[at : splice.start])
        if splice.taken is not None:
            left[splice.block] -= splice.taken[1]
            out.append(splice.text if left[splice.block] else splice.alone)
        elif splice.following is not None and joins == splice.start:
            out.append(splice.following)
        else:
            out.append(splice.guarded if index in guarded and splice.guarded is not None else splice.text)
        at = max(at, splice.end)
        joins = splice.start if splice.following is not None else -1
    return "".join(out) + text[at:]


def _order(splice: Splice) -> tuple[int, ...]:
    """What comes first at one place.

    Inserts, before what is replaced. Of these, what goes after a statement (an inner one before the one around it), then what
    goes to the start of the function, then what goes before the next statement.
    """
    inserts = splice.start == splice.end
    rank = {"insert_after": 0, "at_start": 1}.get(splice.action, 2)
    line = splice.text.lstrip("\r\n")
    depth = len(line) - len(line.lstrip()) if inserts and rank == 0 else 0
    return splice.start, not inserts, rank, -depth


def splice_edit(edit: Edit, match: Match, source: Source, function: Function) -> Splice:
    """The splice of one edit at one match.

    Raises:
        NeedsLines: the statement must be written out first.
        InvalidResult: the edit cannot be made there.
    """
    if match.block is None:
        _require_position(match.nodes[0], source)
    if edit.action == "set_argument":
        return _set_argument(edit, match, source)
    if edit.action == "replace" and match.block is None and _is_expression(edit.code):
        start, end = source.span(match.nodes[0])
        code = _in_newlines(fill(expression_of(python_of(edit.code)), match.bindings, source), source)
        return Splice(start, end, code, match.line, edit.action, guarded=f"({code})")
    statements, block = statements_of(edit, match, function)
    if edit.action == "remove":
        return _remove(statements, block, source)
    before = edit.action != "insert_after"
    place = statements[0] if before else statements[-1]
    code = fill(_in_unit(edit.code, place, source), match.bindings, source)
    done = _replace(statements, code, source) if edit.action == "replace" else insert(place, code, source, before=before)
    return replace(done, block=source.start(block[0]))


def _require_position(node: ast.AST, source: Source) -> None:
    """Raise InvalidResult unless the text at a node's position is that node: inside f-strings old Pythons may get it wrong."""
    text = source.segment(node)
    for code in (f"({text}\n)", f"_[{text}\n]"):  # only brackets take slices
        try:
            found = ast.parse(code, mode="eval").body
        except SyntaxError:
            continue
        if shape(node) in (shape(found), shape(getattr(found, "slice", found))):
            return
    raise InvalidResult(
        "Python gives no usable position for this code",
        where=f"line {first_line(node)}: {text}",
        hint="write the whole string as the pattern",
    )


def splice_start(change: AtStart, source: Source, function: Function) -> Splice:
    """The splice that puts statements below the docstring."""
    first = function.body[0]
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    code = _in_unit(python_of(change.code), first, source)
    below = docstring and len(function.body) > 1
    splice = insert(function.body[1] if below else first, code, source, before=below or not docstring)
    return replace(splice, action="at_start")


def _in_unit(code: str, place: ast.stmt, source: Source) -> str:
    """`code` indented as the source is where it goes."""
    tabs = "\t" in source.indent(place.lineno)
    return in_unit(code, python_of(code), "\t" if tabs else source.unit)


def splice_parameter(change: Parameter, source: Source, function: Function) -> Splice:
    """The splice that adds a keyword-only parameter to the signature."""
    arguments = function.args
    text = _in_newlines(f"{change.name}={argument_value(python_of(change.default))}", source)
    star = "" if arguments.vararg or arguments.kwonlyargs else "*, "
    if arguments.kwarg is not None:
        start, _ = source.span(arguments.kwarg)
        start = source.text.rindex("**", 0, start)
        return Splice(start, start, f"{star}{text}, ", function.lineno, "parameter", following=f"{text}, ", adds=change.name)
    end, last = end_of_list(source.text, _parameters_at(source, function))
    lead = {"(": "", ",": " "}.get(last, ", ")
    return Splice(end, end, lead + star + text, function.lineno, "parameter", following=f", {text}", adds=change.name)


def _parameters_at(source: Source, function: Function) -> int:
    """Where a definition's parameter list opens, behind its name and its type parameters."""
    at = source.text.index("def", source.span(function)[0])
    at = source.text.index(function.name, at + len("def")) + len(function.name)
    for item in getattr(function, "type_params", ()):
        at = source.span(item)[1]
    return source.text.index("(", at)


def insert(statement: ast.stmt, code: str, source: Source, *, before: bool) -> Splice:
    """Whole lines of `code` before or after a statement that stands on lines of its own."""
    lead, _, after = _on_own_lines(statement, source)
    lines = reindent(code.rstrip("\n") + "\n", lead, source.newline)
    line = first_line(statement) if before else (statement.end_lineno or statement.lineno)
    if before:
        at = source.line_start(line)
        return Splice(at, at, lines, line, "insert_before", inserted=code)
    at = source.line_start(line + 1)
    if not after.endswith(("\n", "\r")):
        lines = source.newline + lines.removesuffix(source.newline)
    return Splice(at, at, lines, line, "insert_after", inserted=code)


def _on_own_lines(statement: ast.stmt, source: Source) -> tuple[str, int, str]:
    """Indentation, first line and rest of the last line of a statement; raises NeedsLines if it shares a line."""
    first = first_line(statement)
    decorated = first < statement.lineno
    start, end = source.span(statement)
    lead = source.indent(first) if decorated else source.before_on_line(start, first)
    after = source.after_on_line(end, statement.end_lineno or statement.lineno)
    shared = lead.strip() or source.continues(first) or (after.strip() and not after.lstrip().startswith("#"))
    if shared or source.text.startswith("elif", start):
        raise NeedsLines(statement)
    return lead, first, after


def _replace(statements: list[ast.stmt], code: str, source: Source) -> Splice:
    lead, first, _ = _on_own_lines(statements[0], source)
    _on_own_lines(statements[-1], source)
    start = source.line_start(first) + len(lead)
    _, end = source.span(statements[-1])
    lines = reindent(code.strip("\n"), lead, source.newline).removeprefix(lead)
    return Splice(start, end, lines, first, "replace", inserted=code)


def _remove(statements: list[ast.stmt], block: list[ast.stmt], source: Source) -> Splice:
    lead, first, _ = _on_own_lines(statements[0], source)
    _, _, after = _on_own_lines(statements[-1], source)
    start = source.line_start(first)
    _, end = source.span(statements[-1])
    begin, taken = source.start(block[0]), (len(block), len(statements))
    if after.strip():  # a comment behind the statement stays, on a line of its own
        space = after[: len(after) - len(after.lstrip())]
        return Splice(start + len(lead), end + len(space), "", first, "remove", block=begin, taken=taken, alone="pass" + space)
    return Splice(start, end + len(after), "", first, "remove", block=begin, taken=taken, alone=f"{lead}pass{after}")


def statements_of(edit: Edit, match: Match, function: Function) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements that an edit acts on and the block that holds them."""
    if match.block is not None:
        return [node for node in match.nodes if isinstance(node, ast.stmt)], match.block
    node = match.nodes[0]
    statement, block = holder(node, function)
    whole = isinstance(statement, ast.Expr) and statement.value is node
    if edit.action in ("remove", "replace") and not whole:
        raise InvalidResult(
            f"cannot {edit.action} an expression that is part of a statement"
            + ("" if edit.action == "remove" else " by statements"),
            where=f"line {match.line}: {ast.unparse(statement).splitlines()[0]}",
            hint="write the whole statement as the pattern",
        )
    return [statement], block


def holder(node: ast.AST, function: Function) -> tuple[ast.stmt, list[ast.stmt]]:
    """The innermost statement that an expression belongs to, and the block that holds it."""
    line: int = node.lineno  # type: ignore[attr-defined]
    for block in blocks(function):
        for statement in block:
            near = first_line(statement) <= line <= (statement.end_lineno or line)
            if near and any(child is node for child in _own_expressions(statement)):
                return statement, block
    raise AssertionError("a match lies inside the function")


def _own_expressions(statement: ast.stmt) -> Iterable[ast.AST]:
    """Nodes of a statement that belong to no statement inside it."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        yield node
        queue.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def _in_newlines(code: str, source: Source) -> str:
    """`code` with the line endings of the file that it goes to."""
    return re.sub(r"\r\n|\r|\n", source.newline, code)


def _is_expression(code: str) -> bool:
    try:
        ast.parse(python_of(code), mode="eval")
    except SyntaxError:
        return False
    return True


def _set_argument(edit: Edit, match: Match, source: Source) -> Splice:
    call = call_of(match.nodes[0], edit.anchor.pattern)
    code = fill(edit.code, match.bindings, source)
    code = _in_newlines(argument_value(code), source)
    for keyword in call.keywords:
        if keyword.arg == edit.name:
            start, end = source.span(keyword.value)
            return Splice(start, end, code, match.line, "set_argument", guarded=f"({code})")
    text = f"{edit.name}={code}"
    items = sorted([*call.args, *call.keywords], key=position)
    start, end = source.span(items[0]) if items else (0, 0)
    if len(items) == 1 and isinstance(items[0], ast.GeneratorExp) and end == source.span(call)[1]:
        # The call's own parentheses are the generator's; the closing one stays behind what other edits add.
        end -= 1
        lead = f"({source.text[start:end]}), "
    else:
        end, last = end_of_list(source.text, source.span(call.func)[1])
        start, lead = end, {"(": "", ",": " "}.get(last, ", ")
    return Splice(start, end, lead + text, match.line, "set_argument", following=f", {text}", adds=edit.name)


def end_of_list(text: str, at: int) -> tuple[int, str]:
    """The last token of the parenthesised list that opens at or after `at`: where it ends, and its text.

    Raises:
        InvalidResult: no parenthesis opens there.
    """
    while text[at] in ") \t\r\n\f\\":
        at += 1
    if text[at] != "(":
        raise InvalidResult("cannot tell where the parentheses open", where=text[at : at + 60])
    rest = text[at:]
    starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", rest))]
    depth, end, last = 0, at + 1, "("
    for token in tokenize.generate_tokens(io.StringIO(rest, newline="").readline):
        if token.type in (tokenize.NL, tokenize.COMMENT):
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.string, 0) if token.type == tokenize.OP else 0
        if depth == 0:
            break
        end, last = at + starts[token.end[0] - 1] + token.end[1], token.string
    return end, last


def call_of(node: ast.AST | None, pattern: str) -> ast.Call:
    """The outermost call of a match: the matched expression, or the value of the matched statement."""
    while node is not None and not isinstance(node, ast.Call):
        node = getattr(node, "value", None)
    if node is None:
        raise InvalidResult("set_argument needs a pattern that is a call", where=pattern)
    return node
