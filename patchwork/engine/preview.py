"""Previews patches on what is installed: reads sources and rewrites them; imports no target and changes nothing."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .applicability import applicability, outcome_of
from .environment.installed import ModuleSource, read_source, spec_of, version_of
from .errors import PatchError
from .module_plan import dry_run
from .patch import Patch
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
    """Each patch on its own, on the source as it is installed; one that conflicts with another of them fails."""
    found: dict[Patch, Preview] = {}
    fitting: dict[str, list[Patch]] = {}
    installed = functools.cache(version_of)
    for patch in patches:
        try:
            outcome = applicability(patch, switched_off or {}, tested or {}, installed)
        except PatchError as error:
            outcome = failed(patch, error)
        found[patch] = Preview(patch, outcome)
        if outcome.state == "applied":
            fitting.setdefault(patch.module, []).append(patch)
    for module, chosen in fitting.items():
        try:
            spec = spec_of(module)
            assert spec is not None, "a patch is for what is installed"
            source = read_source(spec)
        except PatchError as error:
            found.update({patch: Preview(patch, failed(patch, error)) for patch in chosen})
            continue
        for patch, done in zip(chosen, tried(source, chosen), strict=True):
            if isinstance(done, PatchError):
                found[patch] = Preview(patch, failed(patch, done), source.path)
            else:
                outcome = outcome_of(patch, done, found[patch].outcome.detail, pending=True)
                found[patch] = Preview(patch, outcome, source.path, done)
    return [found[patch] for patch in patches]


def tried(source: ModuleSource, patches: Sequence[Patch]) -> list[Rewrite[bytes] | PatchError]:
    """The rewrite that each patch makes of a module by itself, or why it does not fit, alone or beside the others."""
    found = [_alone(source, patch) for patch in patches]
    fitting = [number for number, done in enumerate(found) if not isinstance(done, PatchError)]
    while len(fitting) > 1:
        try:
            dry_run(source, [patches[number] for number in fitting])
            break
        except PatchError as error:
            named = [number for number in fitting if patches[number].name == error.patch]
            culprit = (named or fitting)[-1]
            found[culprit] = error
            fitting.remove(culprit)
    return found


def failed(patch: Patch, error: PatchError) -> Outcome:
    """The outcome of a patch that does not fit; the error is a copy, since one error may be that of several patches."""
    error = copy.copy(error).about(patch=patch.name, target=patch.target)
    return Outcome(patch.name, patch.target, "failed", error.what, error=error)


def _alone(source: ModuleSource, patch: Patch) -> Rewrite[bytes] | PatchError:
    try:
        return dry_run(source, [patch])
    except PatchError as error:
        return error
