"""Runs the cases that travel with a patch."""

from __future__ import annotations

import difflib

from .errors import CaseFails, PatchError
from .patch import Case, Patch
from .pattern import shape
from .rewriting import rewrite
from .text import parse


def check_cases(patch: Patch) -> None:
    """Rewrite each case of a patch and compare: `before` must become `after` (formatting aside), `untouched` must be native.

    Raises:
        CaseFails: naming the first case that does not hold, and why.
    """
    for number, case in enumerate(patch.cases, start=1):
        if why := _fails(patch, case):
            raise CaseFails(
                f"case {number} of {len(patch.cases)} does not hold",
                patch=patch.name,
                target=patch.target,
                nearest=why,
                hint="correct the case, or the edits",
            )


def _fails(patch: Patch, case: Case) -> str:
    """Why a case does not hold; "" if it does."""
    if bool(case.untouched) == bool(case.before) or bool(case.before) != bool(case.after):
        return "a case has `before` and `after`, or `untouched`"
    try:
        done = rewrite(case.untouched or case.before, patch)
        wanted = parse(case.untouched or case.after)
    except PatchError as error:
        return str(error)
    except SyntaxError as error:
        return f"`after` is not Python: {error.msg} (line {error.lineno})"
    expected = "native" if case.untouched else "applied"
    if done.states[patch.name] != expected:
        return f"the patch is {done.states[patch.name]} there, not {expected}"
    if shape(parse(done.source)) == shape(wanted):
        return ""
    lines = difflib.unified_diff(
        case.after.splitlines(), done.source.splitlines(), "the case's `after`", "the rewrite", lineterm=""
    )
    return "\n".join(lines)
