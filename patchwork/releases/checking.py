"""Checks patches on a tree: the same rewrite as for what is installed, on sources that are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from ..engine.environment.installed import ModuleSource
from ..engine.errors import (
    AnchorMissing,
    InvalidPatch,
    PatchError,
    ReleaseUnavailable,
    SourceUnavailable,
    TargetMissing,
    UnknownRelease,
)
from ..engine.patch import Patch
from ..engine.preview import failed
from ..engine.report import Outcome
from ..engine.rewriting import Rewrite
from ..engine.validation import specifier_of
from ..selection import command_for
from .against import packages_of
from .folders import for_what
from .module_trials import Progress, Result, Trial, try_all
from .reexports import home_of
from .trees import Tree, canonical
from .wheels import cached

_NEWEST = Version("999999")  # stands for a version that is not known


@dataclass(frozen=True)
class Finding:
    """One patch on one release.

    Attributes:
        package, version: the release (version None: unknown).
        path: the file it is for, inside its wheel or folder, or "" if it did not get that far.
        origin: the wheel or folder.
        outcome: `applied`, `native`, `absent` or `failed` with the error.
        rewrite: source before and after, where it was asked for and the patch gets that far.
    """

    patch: Patch
    package: str
    version: str | None
    path: str
    outcome: Outcome
    rewrite: Rewrite[bytes] | None = None
    origin: str = ""

    @property
    def release(self) -> str:
        """Package and version, in words."""
        return f"{self.package} {self.version or '(version unknown)'}"

    @property
    def diff(self) -> str:
        """Unified diff with the release in its headers; "" where nothing changes or no rewrite was kept."""
        if self.rewrite is None or not self.rewrite.diff:
            return ""
        stem = self.patch.module.replace(".", "/")
        file = f"{stem}/__init__.py" if self.path.endswith(f"{stem}/__init__.py") else f"{stem}.py"
        _, _, *body = self.rewrite.diff.split("\n")
        return "\n".join([f"--- a/{file}\t{self.release}", f"+++ b/{file}\t{self.release}, {self.patch.name}", *body])


def check(patches: Sequence[Patch], tree: Tree, *, keep_rewrites: bool = False) -> list[Finding]:
    """Each patch that concerns `tree`, in their order, in this process; none does: an empty list.

    Raises:
        ReleaseUnavailable: the tree cannot be read.
    """
    return _check(patches, [tree], keep_rewrites, 1, None)


def check_all(
    patches: Sequence[Patch],
    trees: Sequence[Tree],
    *,
    workers: int = 2,
    keep_rewrites: bool = False,
    progress: Progress | None = None,
) -> list[Finding]:
    """Each patch on each tree that it concerns, tree by tree; a missed anchor is told the last release where the patch fits.

    Args:
        workers: processes; equal modules of several releases are worked on once.
        progress: called with the number of modules done and the number in all, before the first and after each.

    Raises:
        UnknownRelease: no patch is for any of the trees.
        ReleaseUnavailable: a tree cannot be read.
    """
    found = _check(patches, trees, keep_rewrites, workers, progress)
    if not found and trees:
        names = ", ".join(dict.fromkeys(map(str, trees)))
        raise UnknownRelease(f"no selected patch is for {names}", hint=for_what(packages_of(patches)))
    _tell_last_matches(found)
    return found


def refuse_namesakes(patches: Sequence[Patch]) -> None:
    """Raise InvalidPatch where two patches have one name; says where both are from."""
    known: dict[str, Patch] = {}
    for patch in patches:
        other = known.setdefault(patch.name, patch)
        if other is not patch:
            raise InvalidPatch(
                f"two patches are called {patch.name}",
                where="\n".join(f"{_origin(one)}, of {one.target}" for one in (other, patch)),
                hint="rename one of them, or select only one",
            )


def _origin(patch: Patch) -> str:
    command = command_for(patch)
    return f"built in or of a pack ({command})" if command == patch.name else command.removesuffix(f"::{patch.name}")


@dataclass(frozen=True, eq=False)
class _Place:
    """One patch on one tree: settled without a look at the code, or to be tried on a module."""

    patch: Patch
    tree: Tree
    note: str
    source: ModuleSource | None = None
    settled: Outcome | None = None


def _check(patches: Sequence[Patch], trees: Sequence[Tree], keep: bool, workers: int, progress: Progress | None) -> list[Finding]:
    places: list[_Place] = []
    trials: dict[object, Trial] = {}
    tried: dict[_Place, tuple[object, int]] = {}
    for tree in trees:
        modules: dict[str, list[_Place]] = {}
        for place in _places(patches, tree):
            places.append(place)
            if place.source is not None:
                modules.setdefault(place.source.name, []).append(place)
        for name, group in modules.items():
            source, together = group[0].source, tuple(place.patch for place in group)
            assert source is not None, "only places with a source are grouped"
            key = (name, source.data, together)
            trials.setdefault(key, Trial(source, together, keep))
            tried.update({place: (key, number) for number, place in enumerate(group)})
    results = dict(zip(trials, try_all(list(trials.values()), workers, progress or (lambda done, total: None)), strict=True))
    found = {place: results[key][number] for place, (key, number) in tried.items()}
    return [_finding(place, found.get(place)) for place in places]


def _places(patches: Sequence[Patch], tree: Tree) -> Iterator[_Place]:
    modules: dict[str, ModuleSource | PatchError] = {}
    for patch in patches:
        top = patch.module.partition(".")[0]
        ranges = {name: text for name, text in patch.versions.items() if canonical(name) == canonical(tree.package)}
        others = [name for name in patch.versions if name not in ranges]
        provided = tree.provides(top)
        # Of a patch with ranges of several packages, the others' trees are no concern.
        if not provided and (not ranges or (others and canonical(top) != canonical(tree.package))):
            continue
        place = _Place(patch, tree, _note(tree, others))
        outside = [f"for {name} {text}" for name, text in ranges.items() if not _in_range(tree, text, name, patch)]
        if outside or not provided:
            yield replace(place, settled=_absent(place, outside[0] if outside else f"there is no module {top} in it"))
            continue
        if patch.module not in modules:
            modules[patch.module] = _read(tree, patch.module)
        found = modules[patch.module]
        if isinstance(found, PatchError):
            yield replace(place, settled=failed(patch, found))
        else:
            yield replace(place, source=found)


def _read(tree: Tree, module: str) -> ModuleSource | PatchError:
    """The module, or why its patches fail; that a tree cannot be read at all is no patch's failure."""
    try:
        return tree.read(module)
    except (TargetMissing, SourceUnavailable) as error:
        return error


def _note(tree: Tree, others: Sequence[str]) -> str:
    notes = ["version unknown: taken as newer than every release"] if _version(tree.version) == _NEWEST else []
    return "; ".join([*notes, *(f"its range of {name} is not looked at" for name in others)])


def _in_range(tree: Tree, text: str, name: str, patch: Patch) -> bool:
    return specifier_of(text, name, patch.name).contains(_version(tree.version))


def _version(text: str | None) -> Version:
    try:
        return Version(text or "")
    except InvalidVersion:
        return _NEWEST


def _absent(place: _Place, detail: str) -> Outcome:
    return Outcome(place.patch.name, place.patch.target, "absent", _joined(detail, place.note))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _finding(place: _Place, result: Result | None) -> Finding:
    tree, path, origin = place.tree, place.source.path if place.source else "", str(place.tree.path)
    if result is None or place.source is None:
        assert place.settled is not None, "what is not settled is tried"
        return Finding(place.patch, tree.package, tree.version, path, place.settled, origin=origin)
    outcome, rewrite = result
    if outcome.error is not None:
        # A copy: the error of a trial may be that of several releases, and each is about its own file.
        outcome = failed(place.patch, outcome.error)
        assert outcome.error is not None
        outcome.error.file = path
        if isinstance(outcome.error, TargetMissing) and (home := home_of(place.source, place.patch.qualname, tree)):
            name = place.patch.qualname.partition(".")[0]
            outcome.error.nearest = "\n".join(filter(None, (f"{name} is defined in {home}", outcome.error.nearest)))
    else:
        outcome = replace(outcome, detail=_joined(outcome.detail, place.note))
    return Finding(place.patch, tree.package, tree.version, path, outcome, rewrite, origin)


def _tell_last_matches(findings: Sequence[Finding]) -> None:
    """Fill in `last_match` of missed anchors: from the same run, and from wheels that are in the cache already."""
    states: dict[tuple[str, str], dict[Version, str]] = {}
    for finding in findings:
        known = states.setdefault((finding.patch.name, finding.package), {})
        known[_version(finding.version)] = finding.outcome.state
    for finding in findings:
        if isinstance(finding.outcome.error, AnchorMissing):
            known = states[finding.patch.name, finding.package]
            older = [version for version in {*known, *cached(finding.package)} if version < _version(finding.version)]
            finding.outcome.error.last_match = _last_match(finding.patch, finding.package, older, known)


def last_match(patch: Patch, installed: str | None) -> str:
    """The newest release, up to the installed one, that a patch fits, among the wheels that are in the cache; "" for none.

    That it is the installed one itself means that the installed file was changed.
    """
    [package] = packages_of([patch]).values()
    older = [version for version in cached(package) if version <= _version(installed)]
    return _last_match(patch, package, older, {})


def _last_match(patch: Patch, package: str, releases: Iterable[Version], known: dict[Version, str]) -> str:
    """The newest of `releases` that the patch fits; `known` are states by release, and is added to."""
    for version in sorted(releases, reverse=True):
        if version not in known:
            known[version] = _state(patch, Tree(package, str(version), cached(package)[version]))
        if known[version] == "applied":
            return f"{package} {version}"
    return ""


def _state(patch: Patch, tree: Tree) -> str:
    try:
        return next((finding.outcome.state for finding in check([patch], tree)), "absent")
    except ReleaseUnavailable:  # a damaged wheel in the cache is no matter of the release asked about
        return "absent"
