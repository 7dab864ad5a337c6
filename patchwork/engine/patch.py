"""What a patch is: frozen declarations, checked when they are written down. Standard library and packaging only."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from .errors import InvalidPatch
from .holes import holes_in, python_of

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.([^\W\d]\w*))*")


@dataclass(frozen=True)
class Anchor:
    """A place in a function: a pattern, and how often it must match.

    Attributes:
        pattern: Python with holes (`$X` one expression or identifier, `$$$X` several arguments, elements or statements).
        required: a required anchor that misses fails the patch; an optional one is reported.
        count: exact number of matches, or None where `at_least` decides.
        at_least: least number of matches.
    """

    pattern: str
    required: bool = True
    count: int | None = 1
    at_least: int | None = None

    def replace(self, code: str) -> Edit:
        """The match gives way to `code`."""
        return Edit(self, "replace", code)

    def insert_before(self, code: str) -> Edit:
        """Statements before the match, or before the statement that holds it."""
        return Edit(self, "insert_before", code)

    def insert_after(self, code: str) -> Edit:
        """Statements after the match, or after the statement that holds it."""
        return Edit(self, "insert_after", code)

    def set_argument(self, name: str, code: str) -> Edit:
        """The pattern's outermost call gets the keyword `name=code`, in place of one of that name."""
        return Edit(self, "set_argument", code, name)

    def remove(self) -> Edit:
        """The matched statements go; an expression only where it is the whole statement."""
        return Edit(self, "remove")

    def __post_init__(self) -> None:
        check_code(self.pattern, "pattern")
        if self.count is not None and self.at_least is not None:
            raise InvalidPatch("an anchor takes count= or at_least=, not both", where=self.pattern)
        least = self.count if self.count is not None else self.at_least
        if least is None or least < 1:
            raise InvalidPatch("an anchor must match at least once: count= or at_least= of 1 or more", where=self.pattern)


@dataclass(frozen=True)
class Edit:
    """One change at an anchor. `action`: replace, insert_before, insert_after, set_argument, remove."""

    anchor: Anchor
    action: str
    code: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.action == "remove":
            return
        check_code(self.code, self.action)
        unbound = sorted(holes_in(self.code) - holes_in(self.anchor.pattern))
        if unbound:
            raise InvalidPatch(
                f"{self.action} uses {', '.join(unbound)}, which the pattern never captures",
                where=self.code,
                nearest=f"{self.anchor.pattern!r} captures {', '.join(sorted(holes_in(self.anchor.pattern))) or 'nothing'}",
                hint="capture it in the pattern, or write the code out",
            )
        if self.action == "set_argument" and (not self.name.isidentifier() or keyword.iskeyword(self.name)):
            raise InvalidPatch(f"set_argument: {self.name!r} is not an argument name", where=self.anchor.pattern)


@dataclass(frozen=True)
class OneOf:
    """Alternatives of which exactly one must match: the textual variants of different releases."""

    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Parameter:
    """A new keyword-only parameter of the target, with a default."""

    name: str
    default: str


@dataclass(frozen=True)
class AtStart:
    """Statements at the start of the target's body, below its docstring."""

    code: str


Change = Anchor | Edit | OneOf | Parameter | AtStart


def required(pattern: str, *, count: int | None = None, at_least: int | None = None) -> Anchor:
    """An anchor that must match (exactly once unless `count` or `at_least` says otherwise)."""
    return _anchor(pattern, True, count, at_least)


def optional(pattern: str, *, count: int | None = None, at_least: int | None = None) -> Anchor:
    """An anchor that may miss: reported, never fatal. Matching more often than it may is an error all the same."""
    return _anchor(pattern, False, count, at_least)


def _anchor(pattern: str, is_required: bool, count: int | None, at_least: int | None) -> Anchor:
    if count is None and at_least is None:
        count = 1
    return Anchor(pattern, is_required, count, at_least)


def one_of(*edits: Edit) -> OneOf:
    """Exactly one of these edits' anchors must match."""
    if len(edits) < 2 or not all(isinstance(edit, Edit) for edit in edits):
        raise InvalidPatch("one_of takes two or more edits, such as required(...).replace(...)", where=repr(edits))
    return OneOf(tuple(edits))


def parameter(name: str, *, default: str) -> Parameter:
    """A keyword-only parameter `name=default`; `default` is code, evaluated once in the target's module."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidPatch(f"parameter: {name!r} is not a parameter name")
    check_code(default, "parameter default", mode="eval")
    if holes_in(default):
        raise InvalidPatch("a parameter's default has no pattern, so nothing captures its holes", where=default)
    return Parameter(name, default)


def at_start(code: str) -> AtStart:
    """Statements to run first in the target, below its docstring."""
    check_code(code, "at_start")
    if holes_in(code):
        raise InvalidPatch("at_start has no pattern, so nothing captures its holes", where=code)
    return AtStart(code)


@dataclass(frozen=True)
class Case:
    """A check that travels with a patch: the source of the function alone, before and after (or untouched)."""

    before: str = ""
    after: str = ""
    untouched: str = ""


@dataclass(frozen=True)
class Patch:
    """A named, versioned rewrite of one function.

    Args:
        name: dotted name; all but its last part is the *set*, which applies as a whole or not at all.
        target: `package.module:Class.method` (`.fget`, `.fset`, `.fdel` pick a part of a property).
        edits: changes, all located on the pristine source before any is made.
        versions: PEP 440 range by distribution, such as {"transformers": ">=4.57,<5.9"}.
        reason: why the patch exists; shown by `patchwork list`.
        fixed_when: pattern of the repaired form; matching while no required anchor does means `native`.
        cases: `Case`s that the author vouches for.

    Raises:
        InvalidPatch: naming the field that is wrong.
    """

    name: str
    target: str
    edits: tuple[Change, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    fixed_when: str | None = None
    cases: tuple[Case, ...] = ()

    def __init__(
        self,
        name: str,
        target: str,
        edits: Iterable[Change],
        versions: Mapping[str, str] | None = None,
        reason: str = "",
        fixed_when: str | None = None,
        cases: Iterable[Case] = (),
    ) -> None:
        if isinstance(edits, Change) or not isinstance(edits, Iterable):
            raise InvalidPatch("edits is no list", patch=str(name), hint="write edits=[required(...).replace(...)]")
        for attribute, value in (
            ("name", name),
            ("target", target),
            ("edits", tuple(edits)),
            ("versions", dict(versions or {})),
            ("reason", reason),
            ("fixed_when", fixed_when),
            ("cases", tuple(cases)),
        ):
            object.__setattr__(self, attribute, value)
        self._check()

    def _check(self) -> None:
        if not self.name or any(not part for part in self.name.split(".")):
            raise InvalidPatch(f"{self.name!r} is not a patch name", hint="use dotted words, such as 'trl.sft.collator'")
        if not _TARGET.fullmatch(self.target):
            raise InvalidPatch(f"{self.target!r} is not a target", patch=self.name, hint="write 'package.module:Class.method'")
        if not self.edits:
            raise InvalidPatch("a patch needs at least one edit", patch=self.name)
        for edit in self.edits:
            if not isinstance(edit, Anchor | Edit | OneOf | Parameter | AtStart):
                raise InvalidPatch(f"{edit!r} is not an edit", patch=self.name, hint="see required(...) and its methods")
        if self.fixed_when is not None:
            check_code(self.fixed_when, "fixed_when")
        for package, text in self.versions.items():
            specifier_of(text, package, self.name)

    def __hash__(self) -> int:
        return hash((self.name, self.target))

    @property
    def set_name(self) -> str:
        """Name of the set that applies as a whole: everything before the last dot, or the name itself."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def module(self) -> str:
        """Dotted name of the target's module."""
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """Qualified name of the target inside its module."""
        return self.target.partition(":")[2]


def specifier_of(text: str, package: str, patch: str) -> SpecifierSet:
    """The PEP 440 range `text`; raises InvalidPatch naming the package and the text."""
    try:
        return SpecifierSet(text, prereleases=True)
    except InvalidSpecifier:
        raise InvalidPatch(
            f"versions[{package!r}] = {text!r} is not a PEP 440 range", patch=patch, hint="write such as '>=4.57,<5.9'"
        ) from None


def check_code(code: str, what: str, mode: str = "exec") -> None:
    """Raise InvalidPatch unless `code`, its holes filled, is Python."""
    text = python_of(code)
    if not text.strip():
        raise InvalidPatch(f"{what} is empty", hint="write Python code")
    try:
        tree = ast.parse(text, mode=mode)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise InvalidPatch(
            f"{what} is not Python: {getattr(error, 'msg', error)}" + (f" (line {line})" if line else ""),
            where=code,
            hint="holes are $NAME and $$$NAME in capitals; everything else is plain Python",
        ) from None
    if not getattr(tree, "body", True):
        raise InvalidPatch(f"{what} holds no code, only comments", where=code, hint="write Python code")
