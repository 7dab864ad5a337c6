"""How are the findings of a check shown? A line for each patch and run of releases that came out alike, failures in full."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from packaging.version import InvalidVersion, Version
from rich.markup import escape

from .check_run import Checked
from .releases.checking import Finding

COLOURS = {"pending": "green", "applied": "green", "native": "cyan", "failed": "bold red", "skipped": "yellow", "absent": "dim"}


def check_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Rich markup: the runs, then each failure."""
    width = max((len(finding.patch.name) for finding in findings), default=0)
    for run in runs(findings):
        state, patch, detail = run[0].outcome.state, run[0].patch.name, _said(run[0]) if len(run) > 1 else run[0].outcome.detail
        line = f"  [{COLOURS[state]}]{state:<8}[/] [bold]{escape(f'{patch:<{width}}')}[/]  {escape(releases(run))}"
        yield line + (f"  [dim]{escape(detail)}[/]" if detail else "")
    for finding in findings:
        if finding.outcome.error is not None:
            yield f"\n[bold red]{escape(finding.release)}[/]"
            yield textwrap.indent(escape(str(finding.outcome.error)), "  ")


def runs(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of a patch and package, in the order of the releases, cut where state or detail change."""
    order = {name: number for number, name in enumerate(dict.fromkeys(finding.patch.name for finding in findings))}
    ordered = sorted(findings, key=lambda found: (order[found.patch.name], found.package, _age(found.version)))
    alike = groupby(ordered, key=lambda found: (found.patch.name, found.package, found.outcome.state, _said(found)))
    return [list(group) for _, group in alike]


def _said(finding: Finding) -> str:
    """The detail, but for the line where a release has the change already: that is another one in each."""
    return "" if finding.outcome.state == "native" else finding.outcome.detail


def releases(run: Sequence[Finding]) -> str:
    """A run's releases in words: `trl 1.0.0 .. 1.5.1 (7 releases)`."""
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first.release
    return f"{first.release} .. {last.version or 'unknown'} ({len(run)} releases)"


def check_summary(checked: Checked) -> str:
    """Counts, time and downloads in a sentence."""
    findings = checked.findings
    states = Counter(finding.outcome.state for finding in findings)
    trees = len({(finding.package, finding.version) for finding in findings})
    patches = len({finding.patch.name for finding in findings})
    counts = ", ".join(f"{states[state]} {state}" for state in ("applied", "native", "absent", "failed"))
    wheels = (
        f"{_count(checked.downloads, 'wheel')} downloaded ({checked.size / 1e6:.1f} MB)" if checked.downloads else "no download"
    )
    of = f"{_count(patches, 'patch', 'patches')} on {_count(trees, 'release')}"
    return f"{of}: {counts}; {checked.seconds:.1f} s, {wheels}"


def _age(version: str | None) -> tuple[bool, Version]:
    try:
        return (False, Version(version or ""))
    except InvalidVersion:
        return (True, Version("0"))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
