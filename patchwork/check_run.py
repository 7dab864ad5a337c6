"""What does `patchwork check --against` do? Resolves, fetches, checks, and keeps count of what that took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import progress
from .catalog import named
from .releases.against import packages_of, resolve
from .releases.checking import Finding, check_all


@dataclass(frozen=True)
class Checked:
    """The findings, and what it took: `seconds` in all, `downloads` wheels of `size` bytes fetched."""

    findings: tuple[Finding, ...]
    seconds: float
    downloads: int
    size: int

    @property
    def ok(self) -> bool:
        """Whether no patch failed."""
        return not any(finding.outcome.state == "failed" for finding in self.findings)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain values, for JSON: one dictionary a patch and release."""
        return [finding_as_dict(finding) for finding in self.findings]


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


def run(names: Sequence[str], against: Sequence[str], *, keep_rewrites: bool = False) -> Checked:
    """Check the named patches (none: all) against what the texts mean; progress goes to stderr.

    Raises:
        UnknownPatch, UnknownRelease: a text names nothing, or nothing that a patch is for.
        ReleaseUnavailable: sources cannot be had.
    """
    start, fetched = time.monotonic(), list[Path]()
    patches = named(names)
    packages = packages_of(patches)
    with progress.shown() as advance:

        def tell(done: int, total: int, wheel: Path | None) -> None:
            fetched.extend([wheel] if wheel else [])
            advance("wheels to download", done, total)

        trees = list(dict.fromkeys(tree for text in against for tree in resolve(text, packages, tell)))
        findings = check_all(
            patches, trees, keep_rewrites=keep_rewrites, progress=lambda done, total: advance("modules to check", done, total)
        )
    size = sum(wheel.stat().st_size for wheel in fetched)
    return Checked(tuple(findings), time.monotonic() - start, len(fetched), size)
