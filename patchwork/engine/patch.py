"""What a patch is: frozen declarations, checked when they are written down. Standard library and packaging only."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from .errors import InvalidPatch
from .holes import completed, holes_in, is_header, python_of

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.([^\W\d]\w*))*")


@dataclass(frozen=True)
class Anchor:
    """A place in a function: a pattern, and how often it must match.

    Attributes:
        pattern: Python with holes (`$X` one expression or identifier, `$$$X` several arguments, elements or statements).
        required: a required anchor that misses fails the patch; an optional one is reported.
        count: exact number of matches, or None where `at_least` decides.
        at_least: least number of matches.
        inside: pattern that a match lies in, or the header of a compound statement (`for $X in $$$_:`) whose body it lies in.
        after: pattern, found once, that ends before a match begins.
        before: pattern, found once, that begins after a match ends.

    Holes are shared: what `inside` captured as `$X` is what `$X` of the pattern and of the edit's code stands for.
    """

    pattern: str
    required: bool = True
    count: int | None = 1
    at_least: int | None = None
    inside: str | None = None
    after: str | None = None
    before: str | None = None

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

    @property
    def holes(self) -> frozenset[str]:
        """The holes that a match gives a meaning to."""
        patterns = (self.pattern, self.inside, self.after, self.before)
        return frozenset(hole for pattern in patterns if pattern for hole in holes_in(pattern))

    def __post_init__(self) -> None:
        check_code(self.pattern, "pattern")
        for name in ("inside", "after", "before"):
            pattern = getattr(self, name)
            if pattern is not None:
                header = name == "inside" and is_header(pattern)
                check_code(completed(pattern) if header else pattern, name)
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
        unbound = sorted(holes_in(self.code) - self.anchor.holes)
        if unbound:
            raise InvalidPatch(
                f"{self.action} uses {', '.join(unbound)}, which the pattern never captures",
                where=self.code,
                nearest=f"{self.anchor.pattern!r} captures {', '.join(sorted(self.anchor.holes)) or 'nothing'}",
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


@dataclass(frozen=True)
class Every:
    """A completeness guard: each match of `pattern` is accounted for by an anchor of the patch, or by one of `accounted_by`."""

    pattern: str
    accounted_by: tuple[str, ...] = ()


Change = Anchor | Edit | OneOf | Parameter | AtStart | Every


def required(
    pattern: str,
    *,
    count: int | None = None,
    at_least: int | None = None,
    inside: str | None = None,
    after: str | None = None,
    before: str | None = None,
) -> Anchor:
    """An anchor that must match, exactly once unless `count` or `at_least` says otherwise.

    Args:
        pattern: code with holes; see `Anchor`, also for `inside`, `after` and `before`, which narrow where it may match.
        count: exact number of matches.
        at_least: least number of matches.

    Raises:
        InvalidPatch: a pattern is not Python, or a count cannot be.
    """
    count = 1 if count is None and at_least is None else count
    return Anchor(pattern, True, count, at_least, inside, after, before)


def optional(
    pattern: str,
    *,
    count: int | None = None,
    at_least: int | None = None,
    inside: str | None = None,
    after: str | None = None,
    before: str | None = None,
) -> Anchor:
    """An anchor that may miss: reported, never fatal. Matching more often than it may is an error all the same.

    Arguments and errors are those of `required`.
    """
    count = 1 if count is None and at_least is None else count
    return Anchor(pattern, False, count, at_least, inside, after, before)


def every(pattern: str, *, accounted_by: str | Iterable[str] = ()) -> Every:
    """A completeness guard: a use of `pattern` in the target that nothing accounts for is drift, `UnaccountedUse`.

    A use is accounted for where an anchor of the same patch, or a pattern of `accounted_by`, matches it by code that is written
    out: what a hole merely swallows does not count. So `every("do_truncation")` fails once upstream adds a third place that the
    patch does not know.

    Args:
        pattern: code with holes.
        accounted_by: further patterns; uses inside them need no change.

    Raises:
        InvalidPatch: a pattern is not Python, or matches anything.
    """
    patterns = (accounted_by,) if isinstance(accounted_by, str) else tuple(accounted_by)
    for item in (pattern, *patterns):
        if not isinstance(item, str):
            raise InvalidPatch(f"every: {item!r} is no pattern", hint="write code, such as every('do_truncation')")
        check_code(item, "every")
    if pattern.strip() in holes_in(pattern):
        raise InvalidPatch("every: a hole alone matches everything", where=pattern, hint="name what must be accounted for")
    return Every(pattern, patterns)


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
        before: names or globs of patches whose edits at the same place come after this one's.
        after: names or globs of patches whose edits at the same place come before this one's.

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
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        target: str,
        edits: Iterable[Change],
        versions: Mapping[str, str] | None = None,
        reason: str = "",
        fixed_when: str | None = None,
        cases: Iterable[Case] = (),
        before: str | Iterable[str] = (),
        after: str | Iterable[str] = (),
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
            ("before", (before,) if isinstance(before, str) else tuple(before)),
            ("after", (after,) if isinstance(after, str) else tuple(after)),
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
            if not isinstance(edit, Change):
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
