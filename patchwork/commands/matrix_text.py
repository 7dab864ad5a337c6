"""Shows the matrix: a table of one glyph a release, Markdown for an issue, and plain values for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.markup import escape

from ..releases.expectations import Matrix
from ..releases.matrix import Comparison, Facts, Newer, words
from ..releases.updating import Ranges
from .colours import COLOURS

GLYPHS = {"applied": "+", "native": "=", "absent": ".", "failed": "!"}
_LEAST_WORDS = 24  # where fewer columns are left for the ranges, they go below


@dataclass(frozen=True)
class Result:
    """What a run of the matrix found.

    Attributes:
        releases: what was checked, by package.
        newer: releases that the file does not list, if it was these that were checked.
        changes: by patch, what an update would change: from what (in words) to which ranges.
    """

    matrix: Matrix
    releases: Mapping[str, Sequence[str]]
    facts: Facts
    comparisons: Sequence[Comparison]
    newer: Mapping[str, Newer] | None
    changes: Mapping[str, tuple[str, Ranges]]

    @property
    def ok(self) -> bool:
        """Everything came out as expected."""
        return not any(item.mismatches for item in self.comparisons)

    @property
    def failed(self) -> bool:
        """A patch fits neither the old nor the new code of some release."""
        return any(item.errors for item in self.comparisons)

    def summary(self) -> str:
        """The counts, the time and the downloads in a sentence."""
        facts, total = self.facts, len(self.comparisons)
        failed = sum(bool(item.errors) for item in self.comparisons)
        differ = sum(bool(item.mismatches) for item in self.comparisons) - failed
        checked = {item.package: len(item.states) for item in self.comparisons}
        on = " and ".join(f"{name} ({_count(number, 'release')})" for name, number in checked.items())
        wheels = f"{_count(facts.downloads, 'wheel')} downloaded, {facts.size / 1e6:.1f} MB" if facts.downloads else "no download"
        counts = f"{total - failed - differ} as expected, {differ} not, {failed} failed"
        return f"{_count(total, 'patch', 'patches')} on {on or 'no release'}: {counts}; {facts.seconds:.1f} s, {wheels}"


def table(result: Result, width: int) -> Iterator[str]:
    """Lines of console markup."""
    yield from _news(result.newer)
    if not result.releases:
        return
    for package, releases in result.releases.items():
        items = [item for item in result.comparisons if item.package == package]
        note = "" if items else ": no patch is for it"
        yield f"[bold]{escape(package)}[/]  {_count(len(releases), 'release')}, {escape(_span(releases))}{note}"
        name = max((len(item.patch) for item in items), default=0)
        for item in items:
            yield from _row(item, name, width)
        yield ""
    yield (
        "  ".join(f"[{COLOURS[state]}]{glyph}[/] {state}" for state, glyph in GLYPHS.items()) + "  [bold red]^[/] not as expected"
    )
    for line in differences(result):
        yield f"[red]{escape(line)}[/]"
    for heading, text in failures(result):
        yield f"\n[bold red]{escape(heading)}[/]"
        yield escape(textwrap.indent(text, "  "))
    yield f"\n{escape(result.summary())}"


def markdown(result: Result) -> Iterator[str]:
    """Lines for an issue or a page."""
    yield "# Patches against releases\n"
    yield from _news(result.newer)
    if not result.releases:
        return
    yield "| patch | package | found | as expected |"
    yield "|---|---|---|---|"
    for item in result.comparisons:
        runs = ", ".join(str(run) for run in item.runs)
        yield f"| `{item.patch}` | {item.package} | {runs} | {'**no**' if item.mismatches else 'yes'} |"
    yield f"\n{result.summary()}"
    if lines := list(differences(result)):
        yield "\n## Not as expected\n"
        yield from (f"* {line}" for line in lines)
    for heading, text in failures(result):
        yield f"\n## {heading}\n\n```text\n{text}\n```"


def as_dict(result: Result) -> dict[str, Any]:
    """Plain values, for JSON."""
    newer = (
        {}
        if result.newer is None
        else {package: {"added": list(item.added), "replaced": dict(item.replaced)} for package, item in result.newer.items()}
    )
    return {
        "file": str(result.matrix.path),
        "ok": result.ok,
        "seconds": round(result.facts.seconds, 3),
        "downloads": {"wheels": result.facts.downloads, "bytes": result.facts.size},
        "releases": {package: list(releases) for package, releases in result.releases.items()},
        **({} if result.newer is None else {"new": newer}),
        "patches": [
            {
                "patch": item.patch,
                "package": item.package,
                "states": dict(item.states),
                "mismatches": [vars(mismatch) for mismatch in item.mismatches],
                "errors": {release: str(error) for release, error in item.errors},
            }
            for item in result.comparisons
        ],
        "changes": {
            patch: {"from": old, "to": {state: list(texts) for state, texts in ranges.items()}}
            for patch, (old, ranges) in result.changes.items()
        },
    }


def changes(result: Result) -> Iterator[str]:
    """What an update would write, a change a line or two."""
    for package, item in (result.newer or {}).items():
        yield from (f"{package}: {new} in place of {old}" for old, new in item.replaced.items())
        if item.added:
            yield f"{package}: {', '.join(item.added)} added"
    for patch, (old, ranges) in result.changes.items():
        yield f"{patch}\n  - {old}\n  + {words(ranges)}"


def differences(result: Result) -> Iterator[str]:
    """Where a patch that fits comes out otherwise than expected; a failure has a report of its own."""
    for item in result.comparisons:
        found = [mismatch for mismatch in item.mismatches if mismatch.found != "failed"]
        for (expected, state, where), group in groupby(found, key=lambda each: (each.expected, each.found, each.where)):
            releases = [mismatch.release for mismatch in group]
            says = f"expected {expected}" if expected else "nothing is expected"
            yield f"{item.patch} on {item.package} {_span(releases)}: {says}, found {state} ({where})"


def failures(result: Result) -> Iterator[tuple[str, str]]:
    """A heading and the error, once for neighbouring releases that fail alike: that of the newest."""
    for item in result.comparisons:
        for _, group in groupby(item.errors, key=lambda each: (type(each[1]), each[1].what)):
            errors = list(group)
            span = _span([release for release, _ in errors])
            if len(errors) > 1:
                span = f"{span} ({len(errors)} releases, here the last)"
            yield f"{item.patch} fails on {item.package} {span}", str(errors[-1][1])


def _news(newer: Mapping[str, Newer] | None) -> Iterator[str]:
    if newer is not None and not newer:
        yield "No release is newer than the listed ones.\n"
    for package, item in (newer or {}).items():
        replaced = [f"{new} (after {old})" for old, new in item.replaced.items()]
        yield f"New releases of {package}: {', '.join([*replaced, *item.added])}\n"


def _row(item: Comparison, name: int, width: int) -> Iterator[str]:
    glyphs = "".join(f"[{COLOURS[run.state]}]{GLYPHS[run.state] * run.releases}[/]" for run in item.runs)
    indent, column = 2 + name + 2, 2 + name + 2 + len(item.states) + 2
    # A run is never broken in two lines.
    text = ", ".join(str(run).replace(" ", "\0") for run in item.runs)
    below = width - column < _LEAST_WORDS
    lines = textwrap.wrap(text, width - (4 if below else column), break_long_words=False, break_on_hyphens=False)
    first, *rest = ["", *lines] if below else lines
    margin = " " * (4 if below else column)
    plain = [line.replace("\0", " ") for line in (first, *rest)]
    yield f"  [bold]{escape(item.patch):<{name}}[/]  {glyphs}  {escape(plain[0])}".rstrip()
    yield from (margin + escape(line) for line in plain[1:])
    if item.mismatches:
        wrong = {mismatch.release for mismatch in item.mismatches}
        marks = "".join("^" if release in wrong else " " for release, _ in item.states)
        yield " " * indent + f"[bold red]{marks.rstrip()}[/]"


def _span(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} .. {releases[-1]}"


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}"
