"""The command `patchwork check --against`: resolves and fetches releases, checks patches, and times each stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..releases.against import LeftOut, packages_of, resolve
from ..releases.checking import Finding, check_all, refuse_namesakes
from ..selection import named, tell_command
from . import progress


@dataclass(frozen=True)
class Checked:
    """The findings, and what it took: `seconds` in all, `downloads` wheels of `size` bytes fetched.

    Attributes:
        left_out: releases that could not be checked.
        notes: what a text could have meant as well.
    """

    findings: tuple[Finding, ...]
    seconds: float
    downloads: int
    size: int
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no patch failed, and every release was checked."""
        return not self.left_out and not any(finding.outcome.state == "failed" for finding in self.findings)

    def as_dicts(self, *, diffs: bool = False) -> list[dict[str, Any]]:
        """Plain values, for JSON: one dictionary a patch and release, then one a release that was not checked."""
        found = [{**finding_as_dict(item), **({"diff": item.diff} if diffs else {})} for item in self.findings]
        return [*found, *map(left_out_as_dict, self.left_out)]


def finding_as_dict(finding: Finding) -> dict[str, Any]:
    """One finding as plain values."""
    return {
        "package": finding.package,
        "version": finding.version,
        **finding.outcome.as_dict(),
        "reason": finding.patch.reason,
        "versions": dict(finding.patch.versions),
        "path": finding.path,
    }


def left_out_as_dict(left: LeftOut) -> dict[str, Any]:
    """A release that was not checked as plain values, with the keys of a finding that it can have."""
    values = {"package": left.package, "version": left.version, "patch": None, "state": "not checked"}
    return {**values, "detail": left.why, "error": str(left.error)}


def run(names: Sequence[str], against: Sequence[str], *, keep_rewrites: bool = False) -> Checked:
    """Check the named patches (none: all) against what the texts mean; progress goes to stderr.

    Raises:
        UnknownPatch, UnknownRelease: a text names nothing, or nothing that a patch is for.
        InvalidPatch: two patches have one name.
        ReleaseUnavailable: sources cannot be had.
    """
    start, fetched = time.monotonic(), list[Path]()
    patches = named(names)
    refuse_namesakes(patches)
    packages = packages_of(patches)
    with progress.shown() as advance:

        def tell(done: int, total: int, wheel: Path | None) -> None:
            fetched.extend([wheel] if wheel else [])
            advance("wheels to download", done, total)

        meant = [resolve(text, packages, tell) for text in against]
        trees = list(dict.fromkeys(tree for item in meant for tree in item.trees))
        findings = check_all(
            patches, trees, keep_rewrites=keep_rewrites, progress=lambda done, total: advance("modules to check", done, total)
        )
    for finding in findings:
        tell_command(finding.outcome.error, finding.patch, finding.package)
    size = sum(wheel.stat().st_size for wheel in fetched)
    left_out = {(left.package, left.version): left for item in meant for left in item.left_out}
    notes = dict.fromkeys(item.note for item in meant if item.note)
    return Checked(tuple(findings), time.monotonic() - start, len(fetched), size, tuple(left_out.values()), tuple(notes))
