"""What is to be reported of a patch: whether it is for what is installed, and what its rewrite came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from packaging.version import InvalidVersion, Version

from .environment.installed import is_installed, version_of
from .patch import Patch
from .report import Outcome
from .rewriting import Rewrite
from .validation import specifier_of


def applicability(
    patch: Patch, switched_off: Mapping[str, str], tested: Mapping[str, str], installed: Callable[[str], str | None] = version_of
) -> Outcome:
    """Whether a patch is for what is installed here; state "applied" means that it is to be.

    `installed` gives the version of a distribution, or None: reading it takes milliseconds, so several patches share answers.
    """
    outcome = Outcome(patch.name, patch.target, "applied")
    if patch.name in switched_off:
        return replace(outcome, state="skipped", detail=switched_off[patch.name])
    packages = {**dict.fromkeys(patch.versions), patch.module.partition(".")[0]: None}
    for package in packages:
        version = installed(package)
        if version is None:
            if package in patch.versions or not is_installed(package):
                return replace(outcome, state="absent", detail=f"{package} is not installed")
            continue
        if package in patch.versions and not _in_range(version, patch.versions[package], package, patch):
            return replace(outcome, state="skipped", detail=f"for {package} {patch.versions[package]}; {version} is installed")
        if package in tested and _newer(version, tested[package]):
            outcome = replace(
                outcome, detail=f"untested: {package} {version} is newer than {tested[package]}, the last one checked"
            )
    return outcome


def outcome_of(patch: Patch, done: Rewrite[Any], note: str, *, pending: bool, waiting: str = "") -> Outcome:
    """The outcome of a patch whose rewrite is `done`; `pending` if it is not in force yet, `waiting` says for what."""
    state = done.states[patch.name]
    notes = [
        note,
        *done.others.get(patch.name, ()),
        *(f"optional anchor not found: {pattern}" for pattern in done.missed.get(patch.name, ())),
    ]
    if state == "native":
        notes.append(f"the release has it already, {done.native[patch.name]}")
    elif pending:
        state = "pending"
        notes.append(waiting)
    edits = tuple(f"{edit.action} at line {edit.line}" for edit in done.edits if edit.patch == patch.name)
    return Outcome(patch.name, patch.target, state, "; ".join(filter(None, notes)), edits)


def _in_range(version: str, text: str, package: str, patch: Patch) -> bool:
    try:
        return specifier_of(text, package, patch.name).contains(version)
    except InvalidVersion:  # a version that cannot be compared is in no range
        return False


def _newer(version: str, newest: str) -> bool:
    try:
        return Version(version) > Version(newest)
    except InvalidVersion:
        return True
