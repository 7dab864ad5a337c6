"""A required anchor missed: what comes closest, where did the code go, and has upstream made the change itself?"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .errors import AnchorMissing, AnchorMoved
from .holes import as_written, hole_of, is_header, python_of
from .locate import Function, functions
from .patch import Anchor, Edit, Patch
from .pattern import blocks, find, find_headers, first_line, shape, tells
from .splicing import call_of
from .text import Source

_WORTH_SHOWING = 0.45
_SURELY_MADE = 0.85
_LONGEST = 200  # tokens of a statement that are compared
_TOKEN = re.compile(r"\$*\w+|[^\w\s]")
_MOST_LINES = 14  # of a diff
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
        hint=_next(patch, moved=bool(moved), fixed=bool(fixed), narrowed=bool(narrowed)),
    )
    if near is not None and not narrowed and ratio < 1:
        error.diff = _diff(anchor.pattern, near.text)
    error.moved_to = tuple(moved[:3])
    error.fixed_upstream = fixed
    return error


def _next(patch: Patch, *, moved: bool, fixed: bool, narrowed: bool) -> str:
    package = next(iter(patch.versions), patch.module.partition(".")[0])
    against = package + patch.versions.get(package, "")
    if fixed:
        advice = "if the release has made the change itself, say so with fixed_when=, or end `versions` before it"
    elif narrowed:
        advice = "correct inside=, after= or before=, or take them out"
    elif moved:
        advice = "target the function that has it now, with `versions` for each place"
    else:
        advice = "add the new form with one_of(...), or narrow `versions`"
    return f"{advice}\n`patchwork check {patch.name} --against '{against}'` shows which releases it fits"


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
    call = call_of(ast.parse(python_of(edit.anchor.pattern)).body[0], edit.anchor.pattern)
    if isinstance(call.func, ast.Name) and hole_of(call.func.id):
        return ""
    value = shape(ast.parse(python_of(edit.code), mode="eval").body)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and shape(node.func) == shape(call.func):
            for keyword in node.keywords:
                if keyword.arg == edit.name:
                    same = "this" if shape(keyword.value) == value else "another"
                    return (
                        f"line {node.lineno} passes {same} {edit.name} already: {edit.name}={_one_line(_normal(keyword.value))}"
                    )
    return ""


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
    return (best if found else 0.0), found


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


def _diff(pattern: str, found: str) -> str:
    """From the pattern to what stands there, a line an argument where a line is long."""
    one, two = as_written(_laid_out(ast.parse(python_of(pattern)))), _laid_out(ast.parse(found))
    lines = [line.rstrip() for line in difflib.ndiff(one.splitlines(), two.splitlines()) if not line.startswith("?")]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"  ... {len(lines) - _MOST_LINES} more lines"]
    return "\n".join(lines)


def _laid_out(tree: ast.Module) -> str:
    out: list[str] = []
    for line in ast.unparse(tree).splitlines():
        out.extend(_broken(line) if len(line) > 70 else [line])
    return "\n".join(out)


def _broken(line: str) -> Iterator[str]:
    """A long line broken behind the commas of its outermost brackets."""
    lead = line[: len(line) - len(line.lstrip())]
    depth, at, first = 0, 0, True
    for index, character in enumerate(line):
        depth += (character in "([{") - (character in ")]}")
        if depth == 1 and character in "([{," and character != line[index + 1 : index + 2]:
            yield (line[at : index + 1] if first else lead + "    " + line[at : index + 1].strip()).rstrip()
            at, first = index + 1, False
    yield line[at:] if first else lead + "    " + line[at:].strip()


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 160 else joined[:157] + "..."
