"""Decides the state of one patch on a source, over all definitions of its target."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .errors import AnchorMissing, PartlyNative, PatchError, TargetMissing
from .locate import Function, alone, definitions, functions, starts_at
from .locating import Plan, plan_for, state_of
from .patch import AtStart, Edit, OneOf, Patch
from .text import Source


@dataclass(frozen=True)
class Verdict:
    """What one patch comes to: the plans of the definitions that it fits, and why it does not fit the others."""

    state: str
    plans: tuple[Plan, ...]
    others: tuple[str, ...]


def verdict_on(patch: Patch, source: Source, meant: Mapping[str, int] | None, patches: Sequence[Patch]) -> Verdict:
    """What `patch` comes to.

    Args:
        meant: by qualified name, which of its definitions (by index) is meant; None: a function alone will do, too.
        patches: all patches of this rewrite; what they insert may stand beside what this one does.

    Raises:
        PatchError: whatever stops the patch, with its name and target.
    """
    beside = [code for other in patches if other.qualname == patch.qualname for code in _inserted_by(other)]
    plans: list[Plan] = []
    states: set[str] = set()
    misfits: list[tuple[Function, AnchorMissing]] = []
    try:
        found = _targets(patch, source, meant)
        for function in found:
            plan = plan_for(patch, source, function, beside)
            try:
                states.add(state_of(patch, plan))
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
    return Verdict(states.pop(), tuple(plans), others)


def _inserted_by(patch: Patch) -> Iterator[str]:
    """The code that a patch puts beside what is there."""
    for change in patch.edits:
        for part in change.edits if isinstance(change, OneOf) else (change,):
            if isinstance(part, AtStart) or (isinstance(part, Edit) and part.action.startswith("insert")):
                yield part.code


def missed_in(verdict: Verdict) -> tuple[str, ...]:
    """The optional anchors that are in none of the definitions."""
    everywhere = [set(plan.missed) for plan in verdict.plans]
    return tuple(dict.fromkeys(item for plan in verdict.plans for item in plan.missed if all(item in one for one in everywhere)))


def standing_in(verdict: Verdict) -> str:
    """Where a source that is `native` has what the patch makes."""
    return next(place for plan in verdict.plans for place in (plan.fixed, *plan.standing, *plan.kept) if place)


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
