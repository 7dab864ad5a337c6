"""Plans one patch on one definition: its anchors located, its edits as splices, and the state that follows."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .accounting import check_accounted
from .errors import AnchorAmbiguous, CaptureRebound, PartlyNative, PatchError
from .locate import Function
from .narrowing import places
from .nearest import missing
from .patch import Anchor, AtStart, Change, Edit, Every, OneOf, Parameter, Patch
from .pattern import Match, find, first_line
from .rebinding import Made, Use, check_captures
from .reshape import NeedsLines
from .splicing import Splice, splice_edit, splice_parameter, splice_start
from .standing import has_default, stands, starts_with, told
from .text import Source


class Reshape(Exception):
    """A statement that must be written out before the patch's edits can be made."""

    def __init__(self, patch: Patch, function: Function, node: ast.stmt) -> None:
        self.patch = patch
        self.function = function
        self.node = node


@dataclass
class Plan:
    """The plan of one patch on one definition: splices to make, changes that the source has already, anchors missed.

    `kept`: optional edits whose result is already in the source; `anchored`: a required anchor matches; `fixed`: where the
    patch's `fixed_when` does; `unfit`: the first statement that must be written out before its splice can be made; `rebound`:
    captures that an edit may not use; `captures`: what each edit reads and binds; `guards`: completeness checks to run;
    `beside`: code that this and other patches insert.
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
    unfit: Reshape | None = None
    beside: Sequence[str] = ()

    @property
    def todo(self) -> bool:
        return bool(self.splices) or self.unfit is not None


def state_of(patch: Patch, plan: Plan) -> str:
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


def plan_for(patch: Patch, source: Source, function: Function, beside: Sequence[str]) -> Plan:
    """What `patch` wants of `function`; `beside` is the code that this and other patches insert.

    Raises:
        PatchError: an anchor is ambiguous, or an edit cannot be made there. What is missing is told by `state_of`.
    """
    plan = Plan(beside=beside)
    for change in patch.edits:
        try:
            _plan_change(change, source, function, patch, plan)
        except NeedsLines as request:
            plan.unfit = plan.unfit or Reshape(patch, function, request.node)
    if patch.fixed_when is not None and (repaired := find(patch.fixed_when, function)):
        plan.fixed = told(repaired[0].line, patch.fixed_when)
    return plan


def _plan_change(change: Change, source: Source, function: Function, patch: Patch, plan: Plan) -> None:
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


def _plan_one_of(change: OneOf, source: Source, function: Function, patch: Patch, plan: Plan) -> None:
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


def _plan_edit(anchor: Anchor, edit: Edit | None, source: Source, function: Function, patch: Patch, plan: Plan) -> None:
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
