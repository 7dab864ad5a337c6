"""The pure rewrite: source and patches in; source, edits and states out. No import of the target, no I/O, no printing.

All anchors are located on the pristine source before anything is edited. Edits are splices of the original text, so that what no
edit touches stays as it was, byte for byte. The result is parsed again and must contain what was inserted.
"""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from .accounting import check_accounted
from .errors import (
    AnchorAmbiguous,
    AnchorMissing,
    CaptureRebound,
    InvalidResult,
    PartlyNative,
    PatchConflict,
    PatchError,
    TargetMissing,
)
from .locate import Function, alone, definitions, functions, starts_at
from .narrowing import places
from .nearest import missing
from .ordering import ordered
from .patch import Anchor, AtStart, Change, Edit, Every, OneOf, Parameter, Patch, patches_in
from .pattern import Match, blocks, find, first_line, shape
from .rebinding import Made, Use, check_captures, check_edits
from .reshape import NeedsLines, write_out
from .splicing import Splice, apply_splices, splice_edit, splice_parameter, splice_start
from .standing import has_default, stands, starts_with, told
from .text import Source, compiled, decode, encode, lines_of, not_too_deep, parse

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
            except _Reshape as request:
                pristine = _written_out(pristine, request)
    raise InvalidResult("too many statements share lines", patch=chosen[-1].name, hint="anchor other statements")


def _index_at(source: Source, qualname: str, line: int) -> int:
    """Which of the definitions of `qualname` begins at `line`; -1 where none does. Reshaping moves lines, not definitions."""
    starts = [starts_at(function) for function in definitions(source.tree, qualname)]
    return starts.index(line) if line in starts else -1


def _written_out(source: Source, request: _Reshape) -> Source:
    try:
        return write_out(source, request.function, request.node)
    except PatchError as error:
        raise error.about(patch=request.patch.name, target=request.patch.target) from None


class _Reshape(Exception):
    def __init__(self, patch: Patch, function: Function, node: ast.stmt) -> None:
        self.patch = patch
        self.function = function
        self.node = node


@dataclass
class _Plan:
    """What one patch wants of one definition: splices to make, changes that stand already, anchors missed.

    `kept`: optional changes that stand; `anchored`: a required anchor matches; `fixed`: where the patch's `fixed_when` does;
    `unfit`: the first statement that must be written out before its splice can be made; `rebound`: captures that an edit may not
    use; `captures`: what each edit reads and binds; `guards`: completeness checks to run; `beside`: code that this and other
    patches insert.
    A near miss is searched for only when it is going to be told, so `absent` holds what makes the error.
    """

    splices: list[tuple[Splice, str]] = field(default_factory=list)
    standing: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    absent: list[Callable[[], PatchError]] = field(default_factory=list)
    rebound: list[CaptureRebound] = field(default_factory=list)
    guards: list[Callable[[], None]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    anchored: bool = False
    fixed: str = ""
    captures: list[tuple[list[Use], Made]] = field(default_factory=list)
    unfit: _Reshape | None = None
    beside: Sequence[str] = ()

    @property
    def todo(self) -> bool:
        return bool(self.splices) or self.unfit is not None


@dataclass(frozen=True)
class _Verdict:
    """What one patch comes to: the plans of the definitions that it fits, and why it does not fit the others."""

    state: str
    plans: tuple[_Plan, ...]
    others: tuple[str, ...]


def _rewrite(
    first: Source, source: Source, patches: Sequence[Patch], meant: Mapping[str, int] | None
) -> tuple[Rewrite[str], Source]:
    verdicts = {patch.name: _verdict(patch, source, meant, patches) for patch in patches}
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
    missed = {name: patterns for name, verdict in verdicts.items() if (patterns := _missed(verdict))}
    native = {name: _standing(verdict) for name, verdict in verdicts.items() if verdict.state == "native"}
    others = {name: verdict.others for name, verdict in verdicts.items() if verdict.others}
    return Rewrite(first.text, after.text, edits, states, missed, native, others), after


def _verdict(patch: Patch, source: Source, meant: Mapping[str, int] | None, patches: Sequence[Patch]) -> _Verdict:
    beside = [code for other in patches if other.qualname == patch.qualname for code in _inserted_by(other)]
    plans: list[_Plan] = []
    states: set[str] = set()
    misfits: list[tuple[Function, AnchorMissing]] = []
    try:
        found = _targets(patch, source, meant)
        for function in found:
            plan = _plan(patch, source, function, beside)
            try:
                states.add(_state(patch, plan))
            except AnchorMissing as error:
                misfits.append((function, error))
            else:
                plans.append(plan)
        if not plans:
            nearest = next((error for _, error in misfits if error.diff), misfits[0][1])
            nearest.what += f" (in none of the {len(found)} definitions)" if len(found) > 1 else ""
            raise nearest
        if len(states) > 1:
            raise PartlyNative("one definition of the target is repaired and another is not")
    except PatchError as error:
        raise error.about(patch=patch.name, target=patch.target) from None
    others = tuple(f"does not fit the definition at line {starts_at(function)}: {error.what}" for function, error in misfits)
    return _Verdict(states.pop(), tuple(plans), others)


def _check_captures(applied: Sequence[tuple[Patch, _Verdict]]) -> None:
    """Raise CaptureRebound where one edit binds what another, of the same patch or not, reads later."""
    edits = [(patch, uses, made) for patch, verdict in applied for plan in verdict.plans for uses, made in plan.captures]
    for patch, uses, own in edits:
        try:
            check_edits(
                uses, [(made, other.name) for other, _, made in edits if made is not own and other.target == patch.target]
            )
        except CaptureRebound as error:
            raise error.about(patch=patch.name, target=patch.target) from None


def _inserted_by(patch: Patch) -> Iterator[str]:
    """The code that a patch puts beside what is there."""
    for change in patch.edits:
        for part in change.edits if isinstance(change, OneOf) else (change,):
            if isinstance(part, AtStart) or (isinstance(part, Edit) and part.action.startswith("insert")):
                yield part.code


def _missed(verdict: _Verdict) -> tuple[str, ...]:
    """The optional anchors that are in none of the definitions."""
    everywhere = [set(plan.missed) for plan in verdict.plans]
    return tuple(dict.fromkeys(item for plan in verdict.plans for item in plan.missed if all(item in one for one in everywhere)))


def _standing(verdict: _Verdict) -> str:
    return next(place for plan in verdict.plans for place in (plan.fixed, *plan.standing, *plan.kept) if place)


def _refuse_unsettled(after: Source, patches: Sequence[Patch], meant: Mapping[str, int] | None) -> None:
    """Raise InvalidResult if the patches would change their own result once more: then nothing tells before from after."""
    try:
        again = [(patch, _verdict(patch, after, meant, patches)) for patch in patches]
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


def _targets(patch: Patch, source: Source, meant: Mapping[str, int] | None) -> list[Function]:
    found = definitions(source.tree, patch.qualname)
    if meant is None:
        found = found or alone(source.tree, patch.qualname)
    elif patch.qualname in meant:
        index = meant[patch.qualname]
        found = found[index : index + 1] if index >= 0 else []
    if found:
        return found
    names = [name for name, _ in functions(source.tree)]
    close = difflib.get_close_matches(patch.qualname, names, 3, 0.5)
    last = patch.qualname.rpartition(".")[2]
    close += [name for name in names if name.rpartition(".")[2] == last and name not in close][:3]
    raise TargetMissing(
        f"the module defines no function {patch.qualname}",
        nearest=", ".join(close),
        hint="a method is written Class.method; a function inside a function is patched through the outer one; and what a "
        "decorator, a base class or an assignment provides has no definition here",
    )


def _state(patch: Patch, plan: _Plan) -> str:
    """ "applied" or "native", or the error that stops the patch."""
    if plan.fixed:
        if plan.anchored:
            raise PartlyNative(
                f"the release has the repaired form ({patch.fixed_when}), but a required anchor still matches",
                hint="look at the release and split the patch, or narrow `versions`",
            )
        return "native"
    if plan.absent:
        raise plan.absent[0]()
    for guard in plan.guards:
        guard()
    if plan.rebound:
        raise plan.rebound[0]
    if plan.standing and plan.todo:
        raise PartlyNative(
            f"the source already has a part of what the patch makes: {plan.standing[0]}",
            hint="look at the release and split the patch, or narrow `versions`",
        )
    return "native" if plan.standing or (plan.kept and not plan.todo) else "applied"


def _plan(patch: Patch, source: Source, function: Function, beside: Sequence[str]) -> _Plan:
    plan = _Plan(beside=beside)
    for change in patch.edits:
        try:
            _plan_change(change, source, function, patch, plan)
        except NeedsLines as request:
            plan.unfit = plan.unfit or _Reshape(patch, function, request.node)
    if patch.fixed_when is not None and (repaired := find(patch.fixed_when, function)):
        plan.fixed = told(repaired[0].line, patch.fixed_when)
    return plan


def _plan_change(change: Change, source: Source, function: Function, patch: Patch, plan: _Plan) -> None:
    if isinstance(change, Parameter):
        arguments = function.args
        if change.name in [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]:
            if not has_default(change, arguments):
                raise PartlyNative(
                    f"the target has a parameter {change.name} already, but not with the default {change.default}",
                    where=f"line {function.lineno}: {ast.unparse(arguments)}",
                    hint="look at the release; narrow `versions`, or give the parameter another name",
                )
            plan.standing.append(told(function.lineno, f"parameter {change.name}"))
        else:
            plan.splices.append((splice_parameter(change, source, function), ""))
    elif isinstance(change, AtStart):
        if starts_with(function.body, change.code, plan.beside):
            plan.standing.append(told(first_line(function.body[0]), change.code))
        else:
            plan.splices.append((splice_start(change, source, function), ""))
    elif isinstance(change, Every):
        plan.guards.append(lambda: check_accounted(change, patch.edits, function))
    elif isinstance(change, OneOf):
        _plan_one_of(change, source, function, patch, plan)
    else:
        edit = change if isinstance(change, Edit) else None
        anchor = change if isinstance(change, Anchor) else change.anchor
        _plan_edit(anchor, edit, source, function, patch, plan)


def _plan_one_of(change: OneOf, source: Source, function: Function, patch: Patch, plan: _Plan) -> None:
    fitting = [(edit, matches[0].line) for edit in change.edits if (matches := places(edit.anchor, function))]
    if len(fitting) > 1:
        found = [f"line {line}: {edit.anchor.pattern}" for edit, line in fitting]
        raise AnchorAmbiguous("more than one alternative matches", nearest="\n".join(found), hint="make them exclude each other")
    standing = [edit for edit in change.edits if stands(edit, [], source, function)]
    if not fitting and not standing:
        wanted = [(edit.anchor, edit) for edit in change.edits]
        plan.absent.append(lambda: missing(wanted, source, function, patch, plan.standing))
        return
    edit = fitting[0][0] if fitting else standing[0]
    _plan_edit(edit.anchor, edit, source, function, patch, plan)


def _plan_edit(anchor: Anchor, edit: Edit | None, source: Source, function: Function, patch: Patch, plan: _Plan) -> None:
    matches = places(anchor, function)
    if edit is not None and (there := stands(edit, matches, source, function, plan.beside)):
        (plan.standing if anchor.required else plan.kept).append(there)
        return
    if not matches:
        if anchor.required:
            plan.absent.append(lambda: missing([(anchor, edit)], source, function, patch, plan.standing))
        else:
            plan.missed.append(anchor.pattern)
        return
    _check_count(anchor, matches)
    plan.anchored = plan.anchored or anchor.required
    for match in matches if edit is not None else ():
        assert edit is not None
        try:
            uses, made = check_captures(edit, match, function)
        except CaptureRebound as error:
            plan.rebound.append(error)
        else:
            plan.captures.append((uses, made))
        plan.splices.append((splice_edit(edit, match, source, function), anchor.pattern))


def _check_count(anchor: Anchor, matches: list[Match]) -> None:
    listed = ", ".join(str(match.line) for match in matches)
    if anchor.count is not None and len(matches) > anchor.count:
        raise AnchorAmbiguous(
            f"anchor matches {len(matches)} times, {anchor.count} expected: {anchor.pattern}",
            where=f"lines {listed}",
            hint="write more of the code around it into the pattern, narrow it with inside=, after= or before=, or say count=",
        )
    least = anchor.count if anchor.count is not None else anchor.at_least
    if least is not None and len(matches) < least:
        raise AnchorAmbiguous(
            f"anchor matches {len(matches)} times, {'' if anchor.count else 'at least '}{least} expected: {anchor.pattern}",
            where=f"lines {listed}",
            hint="one of its places may have moved or changed",
        )


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
        size = len(wanted)
        held = any(
            shape(block[start : start + size]) == shape(wanted)
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
