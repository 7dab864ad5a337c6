"""What would a patch do to what is installed? Reads sources and rewrites them; imports no target and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import PatchError
from .installed import read_source, spec_of
from .outcomes import applicability, outcome_of
from .patch import Patch
from .prepare import dry_run
from .report import Outcome
from .rewriting import Rewrite


@dataclass(frozen=True)
class Preview:
    """One patch on the installed source.

    Attributes:
        outcome: `pending` if it fits, else as `apply()` would report it.
        path: the file it is for, or "".
        rewrite: source before and after, or None where the patch does not get that far.
    """

    patch: Patch
    outcome: Outcome
    path: str = ""
    rewrite: Rewrite[bytes] | None = None


def preview(
    patches: Sequence[Patch], *, switched_off: Mapping[str, str] | None = None, tested: Mapping[str, str] | None = None
) -> list[Preview]:
    """Each patch on its own, on the source as it is installed."""
    return [_preview(patch, switched_off or {}, tested or {}) for patch in patches]


def _preview(patch: Patch, switched_off: Mapping[str, str], tested: Mapping[str, str]) -> Preview:
    path = ""
    try:
        outcome = applicability(patch, switched_off, tested)
        spec = spec_of(patch.module) if outcome.state == "applied" else None
        if spec is None:
            return Preview(patch, outcome)
        source = read_source(spec)
        path = source.path
        done = dry_run(source, [patch])
    except PatchError as error:
        error.about(patch=patch.name, target=patch.target, file=path)
        return Preview(patch, Outcome(patch.name, patch.target, "failed", error.what, error=error), path)
    return Preview(patch, outcome_of(patch, done, outcome.detail, pending=True), path, done)
