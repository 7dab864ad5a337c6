"""Compares each patch on each listed release with what the matrix file expects, and tries releases that are newer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from packaging.version import Version

from ..engine.errors import InvalidMatrix, PatchError, ReleaseUnavailable, UnknownRelease
from .checking import Finding, check_all
from .expectations import Expected, Matrix
from .index import versions_of
from .trees import Tree, canonical
from .updating import Ranges, ranges_of
from .wheels import fetch, fetch_all

# Called with what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Run:
    """Neighbouring releases on which a patch comes out the same."""

    state: str
    first: str
    last: str
    releases: int

    def __str__(self) -> str:
        return f"{self.state} {self.first}" + (f" .. {self.last}" if self.releases > 1 else "")


@dataclass(frozen=True)
class Mismatch:
    """A release on which a patch does not come out as expected; `expected` is "" where no range covers it."""

    release: str
    expected: str
    found: str
    where: str


@dataclass(frozen=True)
class Comparison:
    """One patch on the releases of its package, in ascending order.

    Attributes:
        states: (release, state).
        mismatches: where that is not what the file expects. A failure always is one.
        errors: (release, error) of each failure.
    """

    patch: str
    package: str
    states: tuple[tuple[str, str], ...]
    mismatches: tuple[Mismatch, ...] = ()
    errors: tuple[tuple[str, PatchError], ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """`states` in as few words as they take."""
        return tuple(_runs(self.states))


@dataclass(frozen=True)
class Newer:
    """Releases of a package that the file does not list: of new minors, and those that take the place of a listed one."""

    added: tuple[str, ...]
    replaced: Mapping[str, str]

    @property
    def releases(self) -> tuple[str, ...]:
        """All of them, ascending."""
        return tuple(sorted((*self.replaced.values(), *self.added), key=Version))


@dataclass(frozen=True)
class Facts:
    """What came out, and what it took: seconds, and the number and bytes of the wheels that were downloaded."""

    findings: tuple[Finding, ...]
    seconds: float
    downloads: int
    size: int


def selected(matrix: Matrix, package: str | None) -> dict[str, tuple[str, ...]]:
    """The listed releases of one package, or of all.

    Raises:
        InvalidMatrix: the file lists no such package.
    """
    found = {
        name: tuple(release.text for release in releases)
        for name, releases in matrix.releases.items()
        if package is None or canonical(package) == canonical(name)
    }
    if package is not None and not found:
        raise InvalidMatrix(f"no package {package!r} is listed", where=str(matrix.path), nearest=", ".join(matrix.releases))
    return found


def newer(matrix: Matrix, packages: Sequence[str]) -> dict[str, Newer]:
    """By package, what the index has beyond the listed releases: the last release of each newer minor, and newer patch releases.

    Raises:
        UnknownRelease: the index has no such package.
        ReleaseUnavailable: it cannot be asked.
    """
    found = {}
    for package in packages:
        listed = {_minor(release.version): release for release in matrix.releases[package]}
        last = {_minor(version): version for version in versions_of(package)}  # ascending: the last of each stays
        newest = max(listed)
        added = tuple(str(version) for minor, version in last.items() if minor > newest)
        replaced = {old.text: str(last[minor]) for minor, old in listed.items() if last.get(minor, old.version) > old.version}
        if added or replaced:
            found[package] = Newer(added, replaced)
    return found


def find(matrix: Matrix, releases: Mapping[str, Sequence[str]], progress: Progress, *, workers: int = 2) -> Facts:
    """Check every patch of the file on releases of its package, given by package; wheels that are not cached are downloaded.

    Raises:
        UnknownRelease: the index has no such release; `where` is its line.
        ReleaseUnavailable: a wheel cannot be had.
    """
    begin = time.monotonic()
    concerned = {expected.package for expected in matrix.expected.values()}
    pairs = [(package, release) for package, texts in releases.items() if package in concerned for release in texts]
    sizes: list[int] = []

    def fetched(done: int, total: int, wheel: Path | None) -> None:
        if wheel is not None:
            sizes.append(wheel.stat().st_size)
        progress("wheels to download", done, total)

    try:
        wheels = fetch_all(pairs, fetched)
    except (UnknownRelease, ReleaseUnavailable):
        _blame(matrix, pairs)
        raise
    trees = [Tree(package, release, wheel) for (package, release), wheel in zip(pairs, wheels, strict=True)]
    findings = check_all(
        matrix.patches, trees, workers=workers, progress=lambda done, total: progress("modules to check", done, total)
    )
    return Facts(tuple(findings), time.monotonic() - begin, len(sizes), sum(sizes))


def compare(matrix: Matrix, facts: Facts) -> list[Comparison]:
    """What came out against what is expected, one comparison a patch, in the order of the file."""
    by_patch: dict[str, list[Finding]] = {}
    for finding in facts.findings:
        expected = matrix.expected[finding.patch.name]
        if finding.package == expected.package:  # its `versions` may name other packages too
            by_patch.setdefault(expected.patch, []).append(finding)
    return [_compare(matrix, entry, by_patch[name]) for name, entry in matrix.expected.items() if name in by_patch]


def corrections(
    matrix: Matrix, comparisons: Sequence[Comparison], found: Mapping[str, Newer] | None = None
) -> dict[str, tuple[str, Ranges]]:
    """By patch that does not come out as expected, what the file says now (in words) and the ranges that would be right.

    Args:
        found: the newer releases, if it was these that were checked: the file vouches for the others.
    """
    changes: dict[str, tuple[str, Ranges]] = {}
    for item in comparisons:
        if not item.mismatches:
            continue
        entry = matrix.expected[item.patch]
        states = item.states
        if found is not None:
            states = _joined(matrix, entry, found[item.package], dict(item.states))
        before: dict[str, list[str]] = {}
        for each in entry.ranges:
            before.setdefault(each.state, []).append(each.text)
        changes[item.patch] = (words(before) or "nothing", ranges_of(states))
    return changes


def words(ranges: Ranges) -> str:
    """Ranges by state in a line."""
    return ", ".join(f"{state} {' and '.join(texts)}" for state, texts in ranges.items())


def _compare(matrix: Matrix, entry: Expected, findings: Sequence[Finding]) -> Comparison:
    states, mismatches, errors = [], [], []
    for finding in sorted(findings, key=lambda item: Version(item.version or "0")):
        release, outcome = finding.version or "", finding.outcome
        states.append((release, outcome.state))
        expected = entry.at(Version(release))
        if expected is None or expected.state != outcome.state:
            where = matrix.where(entry.line if expected is None else expected.line)
            mismatches.append(Mismatch(release, expected.state if expected else "", outcome.state, where))
        if outcome.error is not None:
            errors.append((release, outcome.error))
    return Comparison(entry.patch, entry.package, tuple(states), tuple(mismatches), tuple(errors))


def _joined(matrix: Matrix, entry: Expected, found: Newer, states: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The states that the file expects on listed releases, and those that newer ones have."""
    kept = [release for release in matrix.releases[entry.package] if release.text not in found.replaced]
    expected = {release.text: each.state for release in kept if (each := entry.at(release.version)) is not None}
    return tuple(sorted({**expected, **states}.items(), key=lambda item: Version(item[0])))


def _blame(matrix: Matrix, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise the error of the release that cannot be had, with its line in the file."""
    for package, release in pairs:
        try:
            fetch(package, release)
        except (UnknownRelease, ReleaseUnavailable) as error:
            lines = [item.line for item in matrix.releases[package] if item.text == release]
            if lines:
                error.where = f"{matrix.where(lines[0])} ({error.where})" if error.where else matrix.where(lines[0])
            raise


def _runs(states: Sequence[tuple[str, str]]) -> Iterator[Run]:
    for state, group in groupby(states, key=lambda item: item[1]):
        releases = [release for release, _ in group]
        yield Run(state, releases[0], releases[-1], len(releases))


def _minor(version: Version) -> tuple[int, ...]:
    return (version.epoch, version.major, version.minor)
