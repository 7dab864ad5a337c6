"""Explains a missed anchor: the nearest code, where the code moved, and whether upstream has made the change itself."""

from __future__ import annotations

import ast
import difflib
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .difference import difference
from .errors import AnchorMissing, AnchorMoved
from .holes import as_written, hole_of, is_header, python_of
from .locate import Function, functions
from .patch import Anchor, Edit, Patch
from .pattern import blocks, find, find_headers, first_line, tells
from .splicing import call_of
from .text import Source
from .validation import matches_anything

_WORTH_SHOWING = 0.45
_SURELY_MADE = 0.85
_NAME_ALIKE = 0.7
_LONGEST = 200  # tokens of a statement that are compared
_TOKEN = re.compile(r"\$*\w+|[^\w\s]")
Wanted = tuple[Anchor, Edit | None]


@dataclass(frozen=True)
class _Candidate:
    line: int
    text: str


def missing(wanted: Sequence[Wanted], source: Source, function: Function, patch: Patch, stand: Sequence[str]) -> AnchorMissing:
    """The error for a required anchor that matches nowhere in `function`.

    Args:
        wanted: the anchor with its edit, or all alternatives of which one should have matched.
        source: the module as it is.
        function: the target, which was searched.
        patch: whose anchor it is.
        stand: what else the patch makes that the source has already.
    """
    ratio, near, (anchor, edit) = max(
        ((*_closest(anchor.pattern, function), (anchor, edit)) for anchor, edit in wanted), key=lambda item: item[0]
    )
    what = f"required anchor not found: {_one_line(anchor.pattern)}"
    if len(wanted) > 1:
        what = f"none of {len(wanted)} alternatives found; the nearest is {_one_line(anchor.pattern)}"
    fixed = _made_already(edit, function) if edit is not None else ""
    if stand:
        fixed = "\n".join(filter(None, (fixed, f"the function has another part of the patch already: {_one_line(stand[0])}")))
    moved = [found for item, _ in wanted for found in _elsewhere(item.pattern, source, patch.qualname)]
    narrowed = [text for item, _ in wanted if (text := _narrowed_out(item, function))]
    error = (AnchorMoved if moved else AnchorMissing)(
        what,
        where=f"lines {first_line(function)}-{function.end_lineno} ({patch.qualname})",
        nearest=narrowed[0] if narrowed else f"line {near.line}: {_one_line(near.text)}" if near else "nothing alike",
        hint=_advice(moved=bool(moved), fixed=bool(fixed), narrowed=bool(narrowed)),
    )
    error.command = _command(patch)
    if near is not None and not narrowed and ratio < 1:
        error.diff = difference(anchor.pattern, near.text)
    error.moved_to = tuple(moved[:3])
    error.fixed_upstream = fixed
    return error


def _advice(*, moved: bool, fixed: bool, narrowed: bool) -> str:
    if fixed:
        return "if the release has made the change itself, say so with fixed_when=, or end `versions` before it"
    if narrowed:
        return "correct inside=, after= or before=, or take them out"
    if moved:
        return "target the function that has it now, with `versions` for each place"
    return "add the new form with one_of(...), or narrow `versions`"


def _command(patch: Patch) -> str:
    """What shows which releases the patch fits, or, where it names no distribution, whether it fits what is installed."""
    against = "".join(next(iter(patch.versions.items()), ()))
    return f"patchwork check {patch.name}" + (f" --against '{against}'" if against else "")


def _elsewhere(pattern: str, source: Source, qualname: str) -> Iterator[str]:
    if tells(pattern):
        for name, other in functions(source.tree):
            if name != qualname:
                yield from (f"{name}, line {match.line}" for match in find(pattern, other))


def _narrowed_out(anchor: Anchor, function: Function) -> str:
    """Why an anchor whose pattern does match is not where it should be; "" if its pattern matches nowhere."""
    matches = find(anchor.pattern, function)
    if not matches:
        return ""
    reasons = []
    for name in ("inside", "after", "before"):
        pattern = getattr(anchor, name)
        if pattern is not None:
            there = (find_headers if name == "inside" and is_header(pattern) else find)(pattern, function)
            where = f"lines {', '.join(str(match.line) for match in there)}" if there else "not found"
            reasons.append(f"{name}= {_one_line(pattern)} ({where})")
    lines = ", ".join(str(match.line) for match in matches)
    return f"line {lines}: the pattern matches, but not {' and '.join(reasons)}"


def _made_already(edit: Edit, function: Function) -> str:
    """What in the function looks like the edit's result; "" for nothing."""
    if edit.action == "remove":
        return ""
    if edit.action == "set_argument":
        return _argument_already(edit, function)
    if tells(edit.code) and (there := find(edit.code, function)):
        return f"line {there[0].line} is what {edit.action} makes: {_one_line(_normal(there[0].nodes[0]))}"
    if edit.action != "replace":
        return ""
    ratio, near = _closest(edit.code, function)
    before, _ = _closest(edit.anchor.pattern, function)
    if near is not None and ratio >= _SURELY_MADE and ratio > before:
        return f"line {near.line} is nearer to what the patch makes than to what it looks for: {_one_line(near.text)}"
    return ""


def _argument_already(edit: Edit, function: Function) -> str:
    """The argument that the edit would set, where a call passes it and the pattern does not ask for just that."""
    call = call_of(ast.parse(python_of(edit.anchor.pattern)).body[0], edit.anchor.pattern)
    if isinstance(call.func, ast.Name) and hole_of(call.func.id):
        return ""
    wanted = [_normal(item.value) for item in call.keywords if item.arg == edit.name]
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and _is(_normal(call.func), node.func):
            for item in node.keywords:
                made = not matches_anything(edit.code) and _is(edit.code, item.value)
                if item.arg == edit.name and (made or not any(_is(value, item.value) for value in wanted)):
                    value = f"{edit.name}={_one_line(_normal(item.value))}"
                    return f"line {node.lineno} passes {'this' if made else 'another'} {edit.name} already: {value}"
    return ""


def _is(pattern: str, node: ast.expr) -> bool:
    return any(match.nodes[0] is node for match in find(pattern, ast.Module([ast.Expr(node)], [])))


def _closest(pattern: str, function: Function) -> tuple[float, _Candidate | None]:
    """How like `pattern` the most similar code of `function` is (0 to 1), and that code; None where nothing is alike."""
    parsed = ast.parse(python_of(pattern))
    wanted = _tokens(as_written(_normal(parsed)))
    # What `$$$X` may swallow says nothing against a candidate.
    open_ended = any(token.startswith("$$$") for token in wanted)
    wanted = [token for token in wanted if not token.startswith("$")]
    best, found = _WORTH_SHOWING, None
    matcher: difflib.SequenceMatcher[str] = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    there, whole = Counter(wanted), _weight_of(wanted) or 1.0

    def alike(same: float, tokens: list[str]) -> float:
        ratio = 2 * same / (whole + _weight_of(tokens))
        return 0.8 * same / whole + 0.2 * ratio if open_ended else ratio

    for candidate in _candidates(function, len(parsed.body)):
        tokens = _tokens(candidate.text)
        if alike(_weight_of((there & Counter(tokens)).elements()), tokens) <= best:
            continue  # however they are ordered
        matcher.set_seq1(tokens)
        runs = matcher.get_matching_blocks()
        ratio = alike(sum(_weight_of(wanted[run.b : run.b + run.size]) for run in runs), tokens)
        if ratio > best:
            best, found = ratio, candidate
    return (best, found) if found else _with_a_name_alike(wanted, _candidates(function, len(parsed.body)))


def _with_a_name_alike(wanted: Sequence[str], candidates: Iterable[_Candidate]) -> tuple[float, _Candidate | None]:
    """Of candidates that are not alike otherwise the one that has a name most like one of `wanted`."""
    names = [token for token in wanted if _is_telling(token)]
    best, found = 0.0, None
    for candidate in candidates:
        for token in {*_tokens(candidate.text)} if names else ():
            ratio = max(difflib.SequenceMatcher(None, token, name).ratio() for name in names) if _is_telling(token) else 0.0
            if ratio >= _NAME_ALIKE and (found is None or (ratio, -len(candidate.text)) > (best, -len(found.text))):
                best, found = ratio, candidate
    return best * _WORTH_SHOWING, found


def _is_telling(token: str) -> bool:
    return token.isidentifier() and len(token) > 2 and not keyword.iskeyword(token) and token != "self"


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)[:_LONGEST]


def _weight_of(tokens: Iterable[str]) -> float:
    """Names and numbers tell more than punctuation does."""
    return sum(1.0 if token[0].isalnum() or token[0] == "_" else 0.2 for token in tokens)


def _candidates(function: Function, size: int) -> Iterator[_Candidate]:
    """Runs of `size` statements, and single calls."""
    for block in blocks(function):
        for start in range(max(1, len(block) - size + 1)):
            run = block[start : start + size]
            yield _Candidate(first_line(run[0]), "\n".join(_normal(statement) for statement in run))
    for node in ast.walk(function) if size == 1 else ():
        if isinstance(node, ast.Call):
            yield _Candidate(node.lineno, _normal(node))


def _normal(node: ast.AST) -> str:
    return ast.unparse(node)


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 160 else joined[:157] + "..."
