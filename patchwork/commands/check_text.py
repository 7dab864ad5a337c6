"""Shows the findings of a check: a line for each patch and run of releases with one outcome, failures in full."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import groupby

from packaging.version import InvalidVersion, Version
from rich.markup import escape

from ..releases.against import LeftOut
from ..releases.checking import Finding
from .check import Checked
from .colours import COLOURS


def checked_lines(checked: Checked) -> Iterator[str]:
    """Rich markup: all that a check found, with a summary."""
    yield from check_lines(checked.findings)
    yield from left_out_lines(checked.left_out)
    yield f"\n{check_summary(checked)}"


def check_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Rich markup: the runs, then each failure, once for neighbouring releases that fail alike."""
    width = max((len(finding.patch.name) for finding in findings), default=0)
    found = runs(findings)
    twice = _repeated(findings)
    for run in found:
        state, patch, detail = run[0].outcome.state, run[0].patch.name, _said(run[0]) if len(run) > 1 else run[0].outcome.detail
        line = f"  [{COLOURS[state]}]{state:<8}[/] [bold]{escape(f'{patch:<{width}}')}[/]  {escape(releases(run, twice))}"
        yield line + (f"  [dim]{escape(detail)}[/]" if detail else "")
    for run in found:
        for _, group in groupby(run, key=_failure):
            alike = list(group)
            if alike[-1].outcome.error is not None:
                yield f"\n[bold red]{escape(releases(alike, twice))}[/]"
                yield textwrap.indent(escape(str(alike[-1].outcome.error)), "  ")


def left_out_lines(left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Rich markup: what was not checked, a line for each package and reason."""
    for (package, why), group in groupby(left_out, key=lambda left: (left.package, left.why)):
        yield f"\n[bold red]not checked:[/] {escape(package)} {', '.join(left.version for left in group)} ({why})"


def runs(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of a patch and package, in the order of the releases, cut where state or detail change.

    A release that is there twice, from two places, is a run by itself each time.
    """
    order = {name: number for number, name in enumerate(dict.fromkeys(finding.patch.name for finding in findings))}
    twice = _repeated(findings)
    ordered = sorted(findings, key=lambda found: (order[found.patch.name], found.package, _age(found.version)))

    def alike(found: Finding) -> tuple[str, ...]:
        place = found.origin if _release(found) in twice else ""
        return (found.patch.name, found.package, found.outcome.state, _shape(found, _said(found)), place)

    return [list(group) for _, group in groupby(ordered, key=alike)]


def _said(finding: Finding) -> str:
    """The detail, but for the line where a release has the change already: that is another one in each."""
    return "" if finding.outcome.state == "native" else finding.outcome.detail


def _failure(finding: Finding) -> str:
    return _shape(finding, str(finding.outcome.error))


def _shape(finding: Finding, text: str) -> str:
    """A failure's text without what differs from one release to the next: the release, its wheel, and all numbers."""
    if finding.outcome.error is None:
        return text
    return re.sub(r"\d+(?:\.\d+)*", "0", text.replace(finding.origin, "").replace(finding.version or "0", "0"))


def _release(finding: Finding) -> tuple[str, str | None]:
    return finding.package, finding.version


def _repeated(findings: Sequence[Finding]) -> set[tuple[str, str | None]]:
    """The releases that are there twice, from different places."""
    places = Counter(release for release, _ in {(_release(finding), finding.origin) for finding in findings})
    return {release for release, number in places.items() if number > 1}


def releases(run: Sequence[Finding], twice: Container[tuple[str, str | None]] = ()) -> str:
    """A run's releases in words: `trl 1.0.0 .. 1.5.1 (7 releases)`; those in `twice` with their place."""
    first, last = run[0], run[-1]
    if len(run) == 1:
        return f"{first.release} ({first.origin})" if _release(first) in twice else first.release
    return f"{first.release} .. {last.version or 'unknown'} ({len(run)} releases)"


def check_summary(checked: Checked) -> str:
    """Counts, time and downloads in a sentence."""
    findings = checked.findings
    states = Counter(finding.outcome.state for finding in findings)
    trees = len({(finding.package, finding.version, finding.origin) for finding in findings})
    patches = len({finding.patch.name for finding in findings})
    counts = ", ".join(f"{states[state]} {state}" for state in ("applied", "native", "absent", "failed"))
    wheels = (
        f"{_count(checked.downloads, 'wheel')} downloaded ({checked.size / 1e6:.1f} MB)" if checked.downloads else "no download"
    )
    of = f"{_count(patches, 'patch', 'patches')} on {_count(trees, 'release')}"
    if checked.left_out:
        of += f" ({len(checked.left_out)} not checked)"
    return f"{of}: {counts}; {checked.seconds:.1f} s, {wheels}"


def _age(version: str | None) -> tuple[bool, Version]:
    try:
        return (False, Version(version or ""))
    except InvalidVersion:
        return (True, Version("0"))


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
