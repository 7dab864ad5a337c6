"""Checks what an author wrote: of the right kind, and Python. Each check raises InvalidPatch, naming what is wrong."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from .errors import InvalidPatch
from .holes import completed, hole_of, in_f_string, is_header, many_of, python_of

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.([^\W\d]\w*))*")
_FRAMES_A_LEVEL = 7  # that matching takes, with room for whoever calls
_LONGEST = 600
_CODE = {"replace", "insert_before", "insert_after", "set_argument", "parameter default", "at_start"}


def check_text(value: object, what: str, patch: str = "") -> None:
    """Raise InvalidPatch unless `value` is a string."""
    if not isinstance(value, str):
        raise InvalidPatch(f"{what} is {_short(value)}, not a string", patch=patch)


def check_count(value: object, what: str, pattern: str) -> None:
    """Raise InvalidPatch unless `value` is a whole number, or None."""
    if value is not None and type(value) is not int:  # True is one
        raise InvalidPatch(f"{what}= is {_short(value)}, not a whole number", where=pattern)


def strings(value: object, what: str, patch: str = "") -> tuple[str, ...]:
    """One string or several, as a tuple; raises InvalidPatch for anything else."""
    items = (value,) if isinstance(value, str) else listed(value, what, patch, "write a string, or a list of strings")
    for item in items:
        check_text(item, what, patch)
    return tuple(str(item) for item in items)


def listed(value: object, what: str, patch: str, hint: str) -> tuple[object, ...]:
    """The items of a list, or of whatever else has some; raises InvalidPatch where it has none."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidPatch(f"{what} is no list: {_short(value)}", patch=patch, hint=hint)
    return tuple(value)


def check_name(name: object) -> None:
    """Raise InvalidPatch unless `name` is dotted words, which no glob and no list of names can be mistaken for."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidPatch(
            f"{_short(name)} is not a patch name",
            hint="use dotted words of ASCII letters, digits, _ and -, such as 'trl.sft.collator'",
        )


def check_target(target: object, patch: str) -> None:
    """Raise InvalidPatch unless `target` is `module:qualname`."""
    if not isinstance(target, str) or not _TARGET.fullmatch(target):
        raise InvalidPatch(f"{_short(target)} is not a target", patch=patch, hint="write 'package.module:Class.method'")


def versions_in(value: object, patch: str) -> dict[str, str]:
    """A range by distribution, copied; raises InvalidPatch where that is not what it is."""
    hint = 'write versions={"transformers": ">=4.57,<5.9"}'
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidPatch(f"versions is {_short(value)}, not ranges by distribution", patch=patch, hint=hint)
    for package, text in value.items():
        if not isinstance(package, str) or not _NAME.fullmatch(package):
            raise InvalidPatch(f"versions: {_short(package)} is not a distribution", patch=patch, hint=hint)
        specifier_of(text, package, patch)
    return dict(value)


def specifier_of(text: object, package: str, patch: str) -> SpecifierSet:
    """The PEP 440 range `text`; raises InvalidPatch naming the package and the text."""
    if isinstance(text, str):
        try:
            return SpecifierSet(text, prereleases=True)
        except InvalidSpecifier:
            pass
    raise InvalidPatch(
        f"versions[{package!r}] = {_short(text)} is not a PEP 440 range", patch=patch, hint="write such as '>=4.57,<5.9'"
    )


def check_code(code: object, what: str, mode: str = "exec") -> None:
    """Raise InvalidPatch unless `code`, its holes filled, is Python; with mode "eval", one expression."""
    check_text(code, what)
    assert isinstance(code, str)
    text = python_of(code)
    if not text.strip():
        raise InvalidPatch(f"{what} is empty", hint="write Python code")
    try:
        tree = ast.parse(text, mode=mode)
    except (RecursionError, MemoryError):
        raise _too_deep(code, what) from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        problem = f"is not Python: {getattr(error, 'msg', error)}" + (f" (line {line})" if line else "")
        if mode == "eval" and _is_python(text):
            problem = "must be one expression"
        raise InvalidPatch(f"{what} {problem}", where=_cut(code), hint=_advice(code, what)) from None
    if not getattr(tree, "body", True):
        raise InvalidPatch(f"{what} holds no code, only comments", where=_cut(code), hint="write Python code")
    if any(depth > sys.getrecursionlimit() // _FRAMES_A_LEVEL for depth in _depths(tree)):
        raise _too_deep(code, what)


def check_region(pattern: object, what: str) -> None:
    """Raise InvalidPatch unless `pattern` can stand in inside=, where the header of a statement counts, after= or before=."""
    if what != "inside" or not isinstance(pattern, str) or not is_header(pattern):
        return check_code(pattern, what)
    body = ast.parse(completed(pattern)).body if _is_python(completed(pattern)) else []
    first = body[0] if len(body) == 1 else None
    held = [getattr(first, name, None) for name in ("body", "orelse", "handlers")]
    if not (isinstance(held[0], list) and isinstance(held[0][0], ast.Pass)) or held[1] or held[2]:
        raise InvalidPatch(
            "inside is not Python: no header of one statement with a body", where=_cut(pattern), hint=_advice(pattern, what)
        )


def matches_anything(pattern: str) -> bool:
    """Whether a pattern consists of holes alone."""
    return all(
        isinstance(item, ast.Expr) and isinstance(item.value, ast.Name) and (hole_of(item.value.id) or many_of(item.value.id))
        for item in ast.parse(python_of(pattern)).body
    )


def _advice(code: str, what: str) -> str:
    if text := in_f_string(code):
        way = "write it with .format($X)" if what in _CODE else f"write all of {_cut(text)} as `$S`, or capture what is around it"
        return f"a `$` in a string is a `$`, in an f-string too: {way}"
    if not is_header(code):
        return "holes are $NAME and $$$NAME in capitals; everything else is plain Python"
    if what == "inside":
        return (
            "inside= takes the header of a def, class, if, for, while, with or try, whose body is meant; `elif`, `else`, "
            "`except`, `finally`, `match` and `case` have none of their own: write the whole statement"
        )
    return f"a header alone counts only in inside=; {what} takes whole statements: write what is below it too, or `    $$$_`"


def _too_deep(code: str, what: str) -> InvalidPatch:
    return InvalidPatch(
        f"{what} is nested too deeply for Python's recursion limit", where=_cut(code), hint="write a smaller piece, with holes"
    )


def _depths(tree: ast.AST) -> Iterator[int]:
    queue = [(tree, 0)]
    for node, depth in queue:
        yield depth
        queue.extend((child, depth + 1) for child in ast.iter_child_nodes(node))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _cut(code: str) -> str:
    return code if len(code) <= _LONGEST else code[:_LONGEST] + "..."


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
