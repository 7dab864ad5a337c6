"""The pure rewrite: source and patches in; source, edits and states out. No import of the target, no I/O, no printing.

All anchors are located on the pristine source before anything is edited. Edits are splices of the original text, so that what no
edit touches stays as it was, byte for byte. The result is parsed again and must contain what was inserted.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from .errors import (
    CaptureRebound,
    InvalidResult,
    PatchConflict,
    PatchError,
)
from .locate import definitions, starts_at
from .locating import Reshape
from .ordering import ordered
from .patch import Patch, patches_in
from .pattern import blocks, shape
from .rebinding import check_edits
from .reshape import write_out
from .splicing import Splice, apply_splices
from .text import Source, compiled, decode, encode, lines_of, not_too_deep, parse
from .verdicts import Verdict, missed_in, standing_in, verdict_on

_MOST_RESHAPES = 50
Text = TypeVar("Text", str, bytes)


@dataclass(frozen=True)
class AppliedEdit:
    """One change made. `line` counts in the source before, `action` is the edit's, `anchor` its pattern or ""."""

    patch: str
    action: str
    line: int
    anchor: str


@dataclass(frozen=True)
class Rewrite(Generic[Text]):
    """What a rewrite gives.

    Attributes:
        before: the source as it was; `source`: as it is now, of the same type (bytes in, bytes out).
        edits: the changes made, in the order of the text.
        states: by patch name, "applied" or "native" (the source already has what the patch makes).
        missed: by patch name, the patterns of optional anchors that matched nowhere.
        native: by patch name, where the source has what the patch makes, if it has.
        others: by patch name, the definitions of the target that it does not fit, where it fits one of several.
    """

    before: Text
    source: Text
    edits: tuple[AppliedEdit, ...]
    states: Mapping[str, str]
    missed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    native: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def diff(self) -> str:
        """Unified diff from `before` to `source`; "" where nothing changed."""
        before, after = (
            [line.rstrip("\r\n") for line in lines_of(text if isinstance(text, str) else decode(text)[0])]
            for text in (self.before, self.source)
        )
        return "\n".join(difflib.unified_diff(before, after, "before", "after", lineterm=""))


def rewrite(source: Text, patches: Patch | Iterable[Patch], *, lines: Mapping[str, int] | None = None) -> Rewrite[Text]:
    """Apply patches to the source of one module, or to a function's source alone.

    Args:
        source: text, or bytes in the encoding that they declare.
        patches: one or several, all for this module.
        lines: by qualified name, the first line (decorators included) of the definition meant, where several have the name.
            Given, even empty, for a whole module: a function alone does not do then.

    Raises:
        PatchError: one of its kinds; nothing is returned then.
    """
    chosen = patches_in(patches)
    if isinstance(source, bytes):
        return rewrite_module(source, Source(decode(source)[0]), chosen, lines)[0]
    return _rewritten(Source(source), chosen, lines)[0]


def rewrite_module(
    data: bytes, source: Source, patches: Sequence[Patch], lines: Mapping[str, int] | None
) -> tuple[Rewrite[bytes], Source]:
    """The same for bytes that are parsed already, as `source`; the result is given parsed, too."""
    done, after = _rewritten(source, patches, lines)
    text = data if after is source else encode(done.source, decode(data)[1])
    return Rewrite(data, text, done.edits, done.states, done.missed, done.native, done.others), after


def _rewritten(first: Source, patches: Sequence[Patch], lines: Mapping[str, int] | None) -> tuple[Rewrite[str], Source]:
    chosen, pristine = ordered(patches), first
    meant = None if lines is None else {name: _index_at(pristine, name, line) for name, line in lines.items()}
    with not_too_deep("the source, or code of a patch,"):
        for _ in range(_MOST_RESHAPES):
            try:
                return _rewrite(first, pristine, chosen, meant)
            except Reshape as request:
                pristine = _written_out(pristine, request)
    raise InvalidResult("too many statements share lines", patch=chosen[-1].name, hint="anchor other statements")


def _index_at(source: Source, qualname: str, line: int) -> int:
    """Which of the definitions of `qualname` begins at `line`; -1 where none does. Reshaping moves lines, not definitions."""
    starts = [starts_at(function) for function in definitions(source.tree, qualname)]
    return starts.index(line) if line in starts else -1


def _written_out(source: Source, request: Reshape) -> Source:
    try:
        return write_out(source, request.function, request.node)
    except PatchError as error:
        raise error.about(patch=request.patch.name, target=request.patch.target) from None


def _rewrite(
    first: Source, source: Source, patches: Sequence[Patch], meant: Mapping[str, int] | None
) -> tuple[Rewrite[str], Source]:
    verdicts = {patch.name: verdict_on(patch, source, meant, patches) for patch in patches}
    applied = [(patch, verdicts[patch.name]) for patch in patches if verdicts[patch.name].state == "applied"]
    for _, verdict in applied:
        for plan in verdict.plans:
            if plan.unfit is not None:  # what is wrong with a patch has been told by now, with the lines of the source as it was
                raise plan.unfit
    made = [
        (replace(splice, line=_line_before(splice.line, source, first)), anchor, patch.name)
        for patch, verdict in applied
        for plan in verdict.plans
        for splice, anchor in plan.splices
    ]
    _refuse_overlaps(made)
    _check_captures(applied)
    try:
        after = _spliced(source, [splice for splice, _, _ in made]) if made else first
    except PatchError as error:
        culprit = _culprit(source, patches, made)
        raise error.about(patch=culprit.name, target=culprit.target) from None
    _refuse_unsettled(after, patches, meant)
    made.sort(key=lambda item: item[0].start)
    edits = tuple(AppliedEdit(name, splice.action, splice.line, anchor) for splice, anchor, name in made)
    states = {name: verdict.state for name, verdict in verdicts.items()}
    missed = {name: patterns for name, verdict in verdicts.items() if (patterns := missed_in(verdict))}
    native = {name: standing_in(verdict) for name, verdict in verdicts.items() if verdict.state == "native"}
    others = {name: verdict.others for name, verdict in verdicts.items() if verdict.others}
    return Rewrite(first.text, after.text, edits, states, missed, native, others), after


def _check_captures(applied: Sequence[tuple[Patch, Verdict]]) -> None:
    """Raise CaptureRebound where one edit binds what another, of the same patch or not, reads later."""
    edits = [(patch, uses, made) for patch, verdict in applied for plan in verdict.plans for uses, made in plan.captures]
    for number, (patch, uses, own) in enumerate(edits):
        others = [
            (made, other.name, place > number) for place, (other, _, made) in enumerate(edits) if other.target == patch.target
        ]
        try:
            check_edits(uses, own, [item for item in others if item[0] is not own])
        except CaptureRebound as error:
            raise error.about(patch=patch.name, target=patch.target) from None


def _refuse_unsettled(after: Source, patches: Sequence[Patch], meant: Mapping[str, int] | None) -> None:
    """Raise InvalidResult if the patches would change their own result once more: then nothing tells before from after."""
    try:
        again = [(patch, verdict_on(patch, after, meant, patches)) for patch in patches]
    except PatchError:
        return  # a second rewrite is refused
    for patch, verdict in again:
        if verdict.state == "applied" and any(plan.todo for plan in verdict.plans):
            lines = [f"line {splice.line}: {splice.action}" for plan in verdict.plans for splice, _ in plan.splices]
            raise InvalidResult(
                "the edits would change their own result again",
                patch=patch.name,
                target=patch.target,
                where=f"in the result, {lines[0]}" if lines else "",
                hint="write more of the code out in the anchor, or say with fixed_when= what the result looks like",
            )


def _line_before(line: int, source: Source, first: Source) -> int:
    """The line in the source as it was of one in `source`, which is the same code with some statements written out."""
    if source is first:
        return line
    for node, before in zip(ast.walk(source.tree), ast.walk(first.tree), strict=True):
        for name in ("lineno", "end_lineno"):
            if getattr(node, name, None) == line:
                found: int = getattr(before, name)
                return found
    return line


def _culprit(source: Source, patches: Sequence[Patch], made: list[tuple[Splice, str, str]]) -> Patch:
    """The patch whose edits alone do not give Python; the last one where they fail only together."""
    for patch in patches:
        try:
            _spliced(source, [splice for splice, _, name in made if name == patch.name])
        except PatchError:
            return patch
    return patches[-1]


def _refuse_overlaps(made: list[tuple[Splice, str, str]]) -> None:
    ordered = sorted(made, key=lambda item: (item[0].start, item[0].end))
    for (one, anchor, first), (two, other, second) in itertools.combinations(ordered, 2):
        if not one.excludes(two):
            continue
        who, hint = f"{first} and {second}", "leave one out with exclude=, or let one patch make both changes"
        if first == second:
            who, hint = "two of its edits", "let one edit make both changes"
        what = f"{who} add {two.adds} there" if one.repeats(two) else f"{who} change the same code"
        if (first, anchor, one.action) == (second, other, two.action) and two.end < one.end:
            what = f"matches of one anchor lie in each other: {anchor}"
            hint = "write more of the code around the one that is meant, or narrow with inside=, after= or before="
        raise PatchConflict(what, patch=first, where=f"lines {one.line} ({one.action}) and {two.line} ({two.action})", hint=hint)


def _spliced(source: Source, splices: list[Splice]) -> Source:
    """The edited text, with parentheses around inserted expressions only where their meaning needs them."""
    guarded = frozenset(index for index, splice in enumerate(splices) if splice.guarded is not None)
    if guarded:
        truth = _shape(apply_splices(source.text, splices, guarded))
        if truth is None or _shape(apply_splices(source.text, splices)) == truth:
            guarded = frozenset()  # parentheses cannot stand everywhere, and mostly need not
        for index in sorted(guarded):
            if _shape(apply_splices(source.text, splices, guarded - {index})) == truth:
                guarded -= {index}
    text = apply_splices(source.text, splices, guarded)
    try:
        tree = parse(text)
        compiled(tree, "<edited>")  # the parser lets pass what the compiler refuses: duplicate parameters, a stray `break`
    except SyntaxError as error:
        raise InvalidResult(
            f"the edited source is not Python: {error.msg}",
            where=f"line {error.lineno}: {(error.text or '').strip()}",
            hint="check that the replacement fits where the anchor stands",
        ) from None
    _check_inserted(splices, tree)
    return Source(text, tree)


def _check_inserted(splices: list[Splice], tree: ast.Module) -> None:
    """Every inserted statement sequence must stand in the result with the shape it was given."""
    for code in {splice.inserted for splice in splices if splice.inserted.strip()}:
        wanted = ast.parse(code).body
        size, meant = len(wanted), shape(wanted)
        held = any(
            shape(block[start : start + size]) == meant
            for block in blocks(tree)
            for start in range(len(block) - size + 1)
            if type(block[start]) is type(wanted[0])
        )
        if not held:
            raise InvalidResult("inserted code reads differently where it stands", where=code)


def _shape(text: str) -> str | None:
    try:
        return shape(parse(text))
    except SyntaxError:
        return None
