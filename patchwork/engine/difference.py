"""Shows how the code nearest to a pattern differs from it: a short diff in which holes take what they may take."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator

from .holes import as_written, python_of

_MOST_LINES = 14
_AROUND = 2  # lines that are kept beside a change where the diff is long
_WIDE = 70
_ALIKE = 0.5
_HOLE = re.compile(r"\s*(?P<hole>\$\$\$\w+)(?P<argument>[,)\]}]*)")


def difference(pattern: str, found: str) -> str:
    """The diff from `pattern` to `found`, a line an argument where a line is long; "" where only holes can tell them apart."""
    one, two = (ast.unparse(ast.parse(code)).splitlines() for code in (python_of(pattern), found))
    one = [as_written(line) for line in one]
    heads = {_head(line) for line in (*one, *two) if len(line) > _WIDE or "$$$" in line}
    one, two = _broken(one, heads), _broken(two, heads)
    if any("$" in line for line in one):
        lines = list(_with_holes(one, two))
    else:
        lines = [line.rstrip() for line in difflib.ndiff(one, two) if not line.startswith("?")]
    return "\n".join(_shortened(lines)) if any(line[:1] != " " for line in lines) else ""


def _head(line: str) -> str:
    """What a line has before its first bracket."""
    return re.split(r"[(\[{]", line.strip(), maxsplit=1)[0]


def _broken(lines: list[str], heads: set[str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        out.extend(_pieces(line) if _head(line) in heads else [line])
    return out


def _pieces(line: str) -> Iterator[str]:
    """A line broken behind the commas of its outermost brackets."""
    lead = line[: len(line) - len(line.lstrip())]
    depth, at, first = 0, 0, True
    for index, character in enumerate(line):
        depth += (character in "([{") - (character in ")]}")
        if depth == 1 and character in "([{," and character != line[index + 1 : index + 2]:
            yield (line[at : index + 1] if first else lead + "    " + line[at : index + 1].strip()).rstrip()
            at, first = index + 1, False
    yield line[at:] if first else lead + "    " + line[at:].strip()


def _with_holes(one: list[str], two: list[str]) -> Iterator[str]:
    """Each line of the pattern with the line most like it; what is left is a hole's where it may be, else shown as added."""
    partners = _partners(one, two)
    left = [index for index in range(len(two)) if index not in partners.values()]
    taken: dict[int, list[int]] = {}
    for number, line in enumerate(one):
        if match := _HOLE.fullmatch(line):
            before = max((partners[other] for other in partners if other < number), default=-1)
            behind = min((partners[other] for other in partners if other > number), default=len(two))
            places = range(len(two)) if match["argument"] else range(before + 1, behind)  # keywords come in any order
            taken[number] = [index for index in left if index in places and _depth(two[index]) >= _depth(line)]
            left = [index for index in left if index not in taken[number]]
    for number, line in enumerate(one):
        at = partners.get(number, -1)
        while left and left[0] < at:
            yield f"+ {two[left.pop(0)]}"
        if match := _HOLE.fullmatch(line):
            count = len(taken[number])
            yield f"  {line[: _depth(line)]}{match['hole']}: {count} line{'' if count == 1 else 's'}"
        elif at >= 0 and _likeness(line, two[at]) == 1:
            yield f"  {two[at]}"
        else:
            yield f"- {line}"
            yield from (f"+ {two[at]}" for _ in range(at >= 0))
    yield from (f"+ {two[index]}" for index in left)


def _partners(one: list[str], two: list[str]) -> dict[int, int]:
    """By line of the pattern that is no hole, the line that stands for it: the same one, or else the one most like it."""
    partners: dict[int, int] = {}
    solid = [number for number, line in enumerate(one) if not _HOLE.fullmatch(line)]
    for least in (1.0, _ALIKE):
        for number in solid:
            free = [index for index in range(len(two)) if index not in partners.values()]
            if number not in partners and free:
                ratio, index = max((_likeness(one[number], two[index]), -index) for index in free)
                if ratio >= least:
                    partners[number] = -index
    return partners


def _likeness(one: str, two: str) -> float:
    """How like a line of the pattern a line is: 1 where it is the same, or may be."""
    if re.fullmatch(re.sub(r"\\\$\w+", ".*", re.escape(_bare(one)).replace(r"\$\$\$", r"\$")), _bare(two)):
        return 1.0
    names = [match[1] if (match := re.match(r"\s*(\w+)=(?!=)", line)) else "" for line in (one, two)]
    return 0.99 if names[0] == names[1] != "" else min(0.98, difflib.SequenceMatcher(None, one, two).ratio())


def _bare(line: str) -> str:
    """A line without what depends on whether it is an argument list's last."""
    return line.rstrip(",)]}")


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _shortened(lines: list[str]) -> Iterator[str]:
    """The lines beside a change, as many as may be shown."""
    changed = [number for number, line in enumerate(lines) if line[:1] != " "]
    if len(lines) > _MOST_LINES:
        near = [number for number in range(len(lines)) if any(abs(number - other) <= _AROUND for other in changed)][:_MOST_LINES]
    else:
        near = list(range(len(lines)))
    at = 0
    for number in near:
        if number > at:
            yield f"  ... {number - at} more lines"
        yield lines[number]
        at = number + 1
    if at < len(lines):
        yield f"  ... {len(lines) - at} more lines"
