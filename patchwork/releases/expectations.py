"""Reads the matrix file: releases by package, states by patch and range, and cells, each with its line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..engine.errors import InvalidMatrix, PatchError
from ..engine.patch import Patch
from ..selection import named
from .checking import refuse_namesakes

STATES = ("applied", "native", "absent")


@dataclass(frozen=True)
class Release:
    """A listed release: its text as written, and the line."""

    text: str
    line: int

    @property
    def version(self) -> Version:
        """The text as a version that compares."""
        return Version(self.text)


@dataclass(frozen=True)
class Range:
    """Releases on which one state is expected: a PEP 440 range, and its line."""

    state: str
    text: str
    line: int

    def holds(self, version: Version) -> bool:
        """Whether the range contains a release; a listed pre-release counts."""
        return SpecifierSet(self.text).contains(version, prereleases=True)


@dataclass(frozen=True)
class Expected:
    """What is expected of one patch on the releases of the package that it is for."""

    patch: str
    package: str
    ranges: tuple[Range, ...]
    line: int

    def at(self, version: Version) -> Range | None:
        """The range that contains a release, or None."""
        return next((item for item in self.ranges if item.holds(version)), None)


@dataclass(frozen=True)
class Matrix:
    """A matrix file that was found right.

    Attributes:
        path: the file.
        text: what it held when it was read.
        releases: by package, in ascending order.
        patches: those that something is expected of.
        expected: by patch name. With `complete=False` a patch that is new to the file is here too, without ranges.
        cells: the combinations that are installed and run, as `key: text`; `also` is left out.
    """

    path: Path
    text: str = field(repr=False)
    releases: Mapping[str, tuple[Release, ...]]
    patches: tuple[Patch, ...]
    expected: Mapping[str, Expected]
    cells: tuple[Mapping[str, str], ...]

    def where(self, line: int) -> str:
        """A line of the file, as errors name it."""
        return f"{self.path}:{line}"


def read(path: Path, known: Sequence[Patch], *, complete: bool = True) -> Matrix:
    """Read and check a matrix file.

    Args:
        path: the file.
        known: the patches that it is about if it has no key `patches`. It has to say something about each that is for a package
            that it lists.
        complete: whether each patch must have expectations on each listed release; an update adds what is missing.

    Raises:
        InvalidMatrix: whatever is wrong, with file and line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidMatrix(
            f"the matrix file cannot be read: {error.strerror}",
            where=str(path),
            hint="run this where compat_matrix.yaml lies, or name the file with --file",
        ) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidMatrix("the matrix file is not UTF-8", where=f"{path}:{line}", hint="save it as UTF-8") from None
    return parse(path, text, known, complete=complete)


def parse(path: Path, text: str, known: Sequence[Patch], *, complete: bool = True) -> Matrix:
    """The same for a text that is not in the file yet; `path` is what errors name."""
    return _Reader(path).matrix(text, known, complete)


def package_of(patch: Patch, packages: Iterable[str]) -> str | None:
    """The one of `packages` that holds the patch's target, by its import name or else by the patch's `versions`; None: no one."""
    known = {canonicalize_name(package): package for package in packages}
    return next((known[name] for name in map(canonicalize_name, _holders(patch)) if name in known), None)


def _holders(patch: Patch) -> list[str]:
    """What the distribution that holds the target may be called.

    Where `versions` names one like the module, it is that one: the others are conditions.
    """
    top = patch.module.partition(".")[0]
    alike = any(canonicalize_name(name) == canonicalize_name(top) for name in patch.versions)
    return [top] if alike else [top, *patch.versions]


@dataclass(frozen=True)
class _Reader:
    """Turns nodes into values; each error names the node's line."""

    path: Path

    def matrix(self, text: str, known: Sequence[Patch], complete: bool) -> Matrix:
        root = self._compose(text)
        sections = self._mapping(root, "the file", ("packages", "patches", "expected", "cells"))
        for key in ("packages", "expected"):
            if key not in sections:
                raise self._error(f"the file has no key `{key}`", root, hint=f"add `{key}: {{}}`")
        packages = self._mapping(sections["packages"][1], "`packages`")
        releases = {name: self._releases(name, value) for name, (_, value) in packages.items()}
        if "patches" in sections:
            known = self._chosen(sections["patches"][1], releases)
        expected = self._all_expected(sections["expected"], known, releases, complete, "patches" in sections)
        cells = tuple(self._cells(sections["cells"][1], releases)) if "cells" in sections else ()
        return Matrix(self.path, text, releases, tuple(patch for patch in known if patch.name in expected), expected, cells)

    def _compose(self, text: str) -> yaml.Node:
        try:
            for event in yaml.parse(text, Loader=yaml.SafeLoader):
                if isinstance(event, yaml.AliasEvent):  # what an alias repeats could not be changed in one place alone
                    raise self._error(f"an alias (*{event.anchor}) is not understood here", event, hint="write it out")
            node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
            raise InvalidMatrix(f"this is not YAML: {error.problem}", where=f"{self.path}{line}") from None
        except yaml.reader.ReaderError as error:
            line = f":{text.count(chr(10), 0, error.position) + 1}"
            raise InvalidMatrix(f"this is not YAML: {error.reason}", where=f"{self.path}{line}") from None
        if node is None:
            raise InvalidMatrix("the matrix file is empty", where=f"{self.path}:1", hint="it needs `packages` and `expected`")
        return node

    def _releases(self, package: str, value: yaml.Node) -> tuple[Release, ...]:
        keys = self._mapping(value, f"package {package}", ("releases",))
        if "releases" not in keys:
            raise self._error(f"package {package} lists no releases", value, hint="add `releases: [...]`")
        found: list[Release] = []
        for item in self._items(keys["releases"][1], f"the releases of {package}"):
            release = Release(self._version(item), _line(item))
            if found and release.version == found[-1].version:
                raise self._error(f"{package} {release.text} is listed twice", item, nearest=f"line {found[-1].line}")
            if found and release.version < found[-1].version:
                after = f"{found[-1].text} in line {found[-1].line}"
                raise self._error(
                    f"{package} {release.text} is out of order", item, nearest=after, hint="oldest first, newest last"
                )
            found.append(release)
        if not found:
            raise self._error(f"package {package} lists no releases", keys["releases"][1], hint="name one or more")
        return tuple(found)

    def _version(self, node: yaml.Node) -> str:
        text = self._text(node, "a release")
        try:
            Version(text)
        except InvalidVersion:
            raise self._error(f"{text!r} is not a version", node, hint="write a release, such as 5.24.0") from None
        return text

    def _chosen(self, section: yaml.Node, releases: Iterable[str]) -> list[Patch]:
        """The patches that `patches` names, each item by itself, so that an error has its line."""
        chosen: list[Patch] = []
        for node in self._items(section, "`patches`"):
            try:
                found = named([self._text(node, "a patch")], self.path.parent)
                chosen += [patch for patch in found if patch not in chosen]
                refuse_namesakes(chosen)
            except PatchError as error:
                place = ", ".join(filter(None, (error.file, error.where)))
                where = f"{self.path}:{_line(node)}" + (f" ({place})" if place else "")
                raise InvalidMatrix(f"`patches`: {error.what}", where=where, nearest=error.nearest, hint=error.hint) from None
            if not any(package_of(patch, releases) for patch in found):
                self._package(found[0], releases, node)
        if not chosen:
            raise self._error("`patches` names none", section, hint="leave it out to mean every patch there is")
        return chosen

    def _all_expected(
        self,
        section: tuple[yaml.Node, yaml.Node],
        patches: Sequence[Patch],
        releases: Mapping[str, tuple[Release, ...]],
        complete: bool,
        narrowed: bool,
    ) -> dict[str, Expected]:
        known = {patch.name: patch for patch in patches}
        written = self._mapping(section[1], "`expected`")
        found: dict[str, Expected] = {}
        for name, (key, value) in written.items():
            if name not in known:
                what = f"no patch that `patches` names is called {name!r}" if narrowed else f"no patch is called {name!r}"
                hint = "add it there, or take it out here" if narrowed else "`patchwork list` shows all"
                raise self._error(what, key, nearest=_near(name, known), hint=hint)
            package = self._package(known[name], releases, key)
            entry = Expected(name, package, (), _line(key))
            found[name] = self._expected(entry, value, releases[package], complete)
        for patch in known.values():
            package = package_of(patch, releases) or ""
            if patch.name in written or not package:
                continue
            if complete:
                raise self._error(
                    f"nothing is expected of the patch {patch.name}",
                    section[0],
                    hint="`patchwork matrix --update` adds what it finds; or write `NAME: {applied: RANGE}` here",
                )
            found[patch.name] = Expected(patch.name, package, (), _line(section[0]))
        return found

    def _package(self, patch: Patch, releases: Iterable[str], node: yaml.Node) -> str:
        if package := package_of(patch, releases):
            return package
        hint = "list it with its releases under `packages`"
        if not patch.versions:
            hint += "; if it is listed as a distribution of another name, write that name into the patch's `versions`"
        raise self._error(
            f"{patch.name} is for a package that is not listed: {' or '.join(dict.fromkeys(_holders(patch)))}",
            node,
            nearest=", ".join(releases),
            hint=hint,
        )

    def _expected(self, entry: Expected, value: yaml.Node, releases: Sequence[Release], complete: bool) -> Expected:
        ranges: list[Range] = []
        for state, (key, texts) in self._mapping(value, entry.patch).items():
            if state not in STATES:
                raise self._error(
                    f"{entry.patch}: {state!r} is no state", key, nearest=_near(state, STATES), hint=f"one of {', '.join(STATES)}"
                )
            several = isinstance(texts, yaml.SequenceNode)
            for node in self._items(texts, f"the ranges of {entry.patch}") if several else [texts]:
                ranges.append(self._range(entry.patch, state, node))
        self._disjoint(entry.patch, ranges, releases)
        entry = Expected(entry.patch, entry.package, tuple(ranges), entry.line)
        for release in releases if complete else ():
            if entry.at(release.version) is None:
                raise InvalidMatrix(
                    f"nothing is expected of {entry.patch} on {entry.package} {release.text}",
                    where=f"{self.path}:{entry.line}",
                    nearest=f"the release is listed in line {release.line}",
                    hint="widen a range; or let `patchwork matrix --update` write what it finds",
                )
        return entry

    def _range(self, patch: str, state: str, node: yaml.Node) -> Range:
        text = self._text(node, "a range")
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise self._error(f"{patch}: {text!r} is no version range", node, hint="PEP 440, such as '>=5.2,<5.15'") from None
        return Range(state, text, _line(node))

    def _disjoint(self, patch: str, ranges: Sequence[Range], releases: Sequence[Release]) -> None:
        versions = {release.version for release in releases} | set(_bounds(ranges))
        for one, other in combinations(ranges, 2):
            if both := [version for version in sorted(versions) if one.holds(version) and other.holds(version)]:
                raise InvalidMatrix(
                    f"{patch}: {one.state} {one.text!r} and {other.state} {other.text!r} overlap",
                    where=f"{self.path}:{other.line}",
                    nearest=f"{both[0]} is in both; the first is in line {one.line}",
                    hint="let one range end where the next begins",
                )

    def _cells(self, section: yaml.Node, releases: Mapping[str, tuple[Release, ...]]) -> Iterator[dict[str, str]]:
        for node in self._items(section, "`cells`"):
            cell: dict[str, str] = {}
            for name, (_, value) in self._mapping(node, "a cell", ("python", "torch", "also", *releases)).items():
                if name == "also":
                    self._items(value, "`also`")
                    continue
                cell[name] = self._version(value)
                listed = {release.text for release in releases.get(name, ())}
                if name in releases and cell[name] not in listed:
                    raise self._error(
                        f"a cell names {name} {cell[name]}, which is not listed",
                        value,
                        nearest=_near(cell[name], listed),
                        hint=f"list it under `packages: {name}: releases:`, or take a listed one",
                    )
            if "python" not in cell:
                raise self._error("a cell does not say which Python it runs on", node, hint='add `python: "3.11"`')
            yield cell

    def _mapping(self, node: yaml.Node, what: str, known: Sequence[str] | None = None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes by key. PyYAML would keep the last of two equal keys without a word."""
        if not isinstance(node, yaml.MappingNode):
            raise self._error(f"{what} has to be a mapping", node)
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self._text(key, "a key")
            if name in found:
                raise self._error(f"{name} stands twice in {what}", key, nearest=f"line {_line(found[name][0])}")
            if known is not None and name not in known:
                kind = "package or key" if "python" in known else "key"
                raise self._error(
                    f"{what} has an unknown {kind}: {name}", key, nearest=_near(name, known), hint=f"known: {', '.join(known)}"
                )
            found[name] = (key, value)
        return found

    def _items(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(f"{what} has to be a list", node)
        items: list[yaml.Node] = node.value
        return items

    def _text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag.endswith((":null", ":bool")):
            raise self._error(f"{what} has to be a text", node)
        if node.tag.endswith((":float", ":int")):  # 5.10 and 5.1 are one number
            raise self._error(f"{node.value} is a number to YAML", node, hint=f'put it in quotes: "{node.value}"')
        value: str = node.value
        return value

    def _error(self, what: str, node: yaml.Node | yaml.Event, *, nearest: str = "", hint: str = "") -> InvalidMatrix:
        return InvalidMatrix(what, where=f"{self.path}:{_line(node)}", nearest=nearest, hint=hint)


def _line(node: yaml.Node | yaml.Event) -> int:
    assert node.start_mark is not None, "only nodes made by hand have no mark"
    return int(node.start_mark.line) + 1


def _bounds(ranges: Iterable[Range]) -> Iterator[Version]:
    """The versions that ranges name, and one just above each: ranges that overlap anywhere do so at one of these."""
    for item in ranges:
        for specifier in SpecifierSet(item.text):
            base = specifier.version.removesuffix(".*")
            try:
                yield Version(base)
                yield Version(f"{Version(base).base_version}.0.0.0.1")
            except InvalidVersion:  # `===` takes any text
                continue


def _near(name: str, known: Iterable[str]) -> str:
    return ", ".join(difflib.get_close_matches(name, list(known), 3, 0.4))
