"""Holes in code: `$X` stands for one expression or identifier, `$$$X` for several arguments, elements or statements.

Code with holes becomes plain Python by giving each hole a reserved identifier. A `$` inside a string or comment is literal.
"""

from __future__ import annotations

import re
import textwrap

_STRING_OR_HOLE = re.compile(
    r"(?P<skip>\#[^\n]*"
    r"|(?:\b[rRbBuUfFtT]{1,2})?(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\""
    r"|'(?:\\.|[^\\'\n])*'|\"(?:\\.|[^\\\"\n])*\"))"
    r"|(?P<dollars>\$\$\$|\$)(?P<name>[A-Z_][A-Z0-9_]*)\b",
    re.DOTALL,
)
_ONE = "_hole_one_"
_MANY = "_hole_many_"
_PLACEHOLDER = re.compile(rf"\b({_ONE}|{_MANY})([A-Z_][A-Z0-9_]*)\b")


def python_of(code: str) -> str:
    """`code`, dedented, as plain Python in which each hole is a reserved identifier."""

    def fill(match: re.Match[str]) -> str:
        if match["skip"] is not None:
            return match[0]
        return (_ONE if match["dollars"] == "$" else _MANY) + match["name"]

    return _STRING_OR_HOLE.sub(fill, textwrap.dedent(code).strip("\n")).rstrip()


def is_header(code: str) -> bool:
    """Whether `code` is the header of a compound statement alone, such as `for $X in $Y:`."""
    return python_of(code).endswith(":")


def completed(header: str) -> str:
    """A header as a statement, its body and what else Python asks for added."""
    python = python_of(header) + " pass"
    return python + "\nfinally: pass" if python.startswith("try") else python


def in_f_string(code: str) -> str:
    """The first f-string of `code` with a `$X` between braces, which is no hole there; "" for none."""
    strings = (match["skip"] for match in _STRING_OR_HOLE.finditer(code) if match["skip"])
    return next((text for text in strings if re.match(r"\w*[fFtT]\w*['\"].*\{[^}]*\$[A-Z_]", text, re.DOTALL)), "")


def as_written(python: str) -> str:
    """`python` (as made by `python_of`) with each reserved identifier turned back into its hole."""
    return _PLACEHOLDER.sub(lambda m: ("$" if m[1] == _ONE else "$$$") + m[2], python)


def holes_in(code: str) -> frozenset[str]:
    """The holes of `code` as written: `$X`, `$$$ARGS`."""
    found = _PLACEHOLDER.findall(python_of(code))
    return frozenset(("$" if kind == _ONE else "$$$") + name for kind, name in found)


def hole_of(identifier: str) -> str | None:
    """The `$X` that a reserved identifier stands for, or None for any other text."""
    return "$" + identifier[len(_ONE) :] if identifier.startswith(_ONE) else None


def many_of(identifier: str) -> str | None:
    """The `$$$X` that a reserved identifier stands for, or None for any other text."""
    return "$$$" + identifier[len(_MANY) :] if identifier.startswith(_MANY) else None


def is_free(hole: str) -> bool:
    """Whether a hole matches anything each time it stands (`$_`, `$_ANY`): the same name need not match equal code."""
    return hole.lstrip("$").startswith("_")


def fill_holes(python: str, values: dict[str, str]) -> str:
    """`python` (as made by `python_of`) with each reserved identifier replaced by its value's text."""
    return _PLACEHOLDER.sub(lambda m: values[("$" if m[1] == _ONE else "$$$") + m[2]], python)
