"""What a patch is: frozen declarations, checked when they are written down. Standard library and packaging only."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .errors import InvalidPatch
from .holes import holes_in
from .validation import (
    check_code,
    check_count,
    check_name,
    check_region,
    check_target,
    check_text,
    listed,
    matches_anything,
    strings,
    versions_in,
)


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
            if getattr(self, name) is not None:
                check_region(getattr(self, name), name)
        for name in ("count", "at_least"):
            check_count(getattr(self, name), name, self.pattern)
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
        check_code(self.code, self.action, "eval" if self.action == "set_argument" else "exec")
        unbound = sorted(holes_in(self.code) - self.anchor.holes)
        if unbound:
            raise InvalidPatch(
                f"{self.action} uses {', '.join(unbound)}, which the pattern never captures",
                where=self.code,
                nearest=f"{self.anchor.pattern!r} captures {', '.join(sorted(self.anchor.holes)) or 'nothing'}",
                hint="capture it in the pattern, or write the code out",
            )
        if self.action == "set_argument" and not _names_argument(self.name):
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
    patterns = strings(accounted_by, "every: accounted_by")
    for item in (pattern, *patterns):
        check_code(item, "every")
    if matches_anything(pattern):
        raise InvalidPatch("every: a hole alone matches everything", where=pattern, hint="name what must be accounted for")
    return Every(pattern, patterns)


def one_of(*edits: Edit) -> OneOf:
    """Exactly one of these edits' anchors must match."""
    if len(edits) < 2 or not all(isinstance(edit, Edit) for edit in edits):
        raise InvalidPatch("one_of takes two or more edits, such as required(...).replace(...)", where=repr(edits))
    return OneOf(tuple(edits))


def parameter(name: str, *, default: str) -> Parameter:
    """A keyword-only parameter `name=default`; `default` is code, evaluated once in the target's module."""
    if not _names_argument(name):
        raise InvalidPatch(f"parameter: {name!r} is not a parameter name")
    check_code(default, "parameter default", mode="eval")
    if holes_in(default):
        raise InvalidPatch("a parameter's default has no pattern, so nothing captures its holes", where=default)
    return Parameter(name, default)


def _names_argument(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


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

    def __post_init__(self) -> None:
        for name in ("before", "after", "untouched"):
            check_text(getattr(self, name), f"Case: {name}")


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
        check_name(name)
        for attribute, value in (
            ("name", name),
            ("target", target),
            ("edits", listed(edits, "edits", name, "write edits=[required(...).replace(...)]")),
            ("versions", versions_in(versions, name)),
            ("reason", reason),
            ("fixed_when", fixed_when),
            ("cases", listed(cases, "cases", name, "write cases=[Case(before=..., after=...)]")),
            ("before", strings(before, "before", name)),
            ("after", strings(after, "after", name)),
        ):
            object.__setattr__(self, attribute, value)
        self._check()

    def _check(self) -> None:
        check_target(self.target, self.name)
        check_text(self.reason, "reason", self.name)
        if not self.edits:
            raise InvalidPatch("a patch needs at least one edit", patch=self.name)
        for edit in self.edits:
            if not isinstance(edit, Change):
                raise InvalidPatch(f"{edit!r} is not an edit", patch=self.name, hint="see required(...) and its methods")
        for case in self.cases:
            if not isinstance(case, Case):
                raise InvalidPatch(f"{case!r} is not a case", patch=self.name, hint="write Case(before=..., after=...)")
        if self.fixed_when is not None:
            check_code(self.fixed_when, "fixed_when")
            if matches_anything(self.fixed_when):
                raise InvalidPatch("fixed_when: a hole alone matches everything", patch=self.name, where=self.fixed_when)
        for name in ("before", "after"):
            if self.name in getattr(self, name):
                raise InvalidPatch(f"{name}= names the patch itself", patch=self.name, hint="name the other patch")

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


def patches_in(value: object) -> tuple[Patch, ...]:
    """One patch or several, as a tuple; raises InvalidPatch for anything else."""
    items = (value,) if isinstance(value, Patch) else listed(value, "patches", "", "give a Patch, or a list of them")
    for item in items:
        if not isinstance(item, Patch):
            raise InvalidPatch(f"{item!r} is not a patch", hint="give a Patch, or a list of them")
    found = tuple(item for item in items if isinstance(item, Patch))
    for patch in found:
        if any(other.name == patch.name and other != patch for other in found):
            raise InvalidPatch("two different patches have this name", patch=patch.name, hint="rename one")
    return found
