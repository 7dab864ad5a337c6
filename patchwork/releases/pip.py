"""Runs pip, in a process of its own, and reads its answer."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..engine.errors import ReleaseUnavailable, UnknownRelease

_OPTIONS = ("-vv", "--no-input", "--disable-pip-version-check", "--ignore-requires-python")
# Without pip's own cache, which would keep a second copy.
_DOWNLOAD = ("download", "--no-deps", "--no-cache-dir", "--only-binary=:all:")
# pip goes on without an index that it cannot reach, and says so only when asked to be verbose. A 404 is an answer.
_UNREACHED = re.compile(r"^\s*(Could not fetch URL (?!.*: 404 Client Error).*)$", re.MULTILINE)
_LISTED = re.compile(r"\(from versions: (.*?)\)")
# What pip passes over, as a link whose last part is the file: wheels for other machines, and source archives.
_FOREIGN = re.compile(r"Skipping link: none of the wheel's tags .*[/\\]([^/\\\s]+?\.whl)\b")
_SOURCES = re.compile(r"Skipping link: No sources permitted .*[/\\]([^/\\\s]+?)\.(?:zip|tgz|tbz|txz|tar(?:\.\w+)?)\b")

_CHECK = "check the name, and where pip looks (`pip config list`)"


class OnlySources(UnknownRelease):
    """A release that was never built into a wheel."""


def versions(package: str, *, prereleases: bool = False) -> list[Version]:
    """The releases of a package that are not yanked, ascending, whatever they are packed as and whatever Python they are for.

    Raises:
        UnknownRelease: every index was reached, and none has one.
        ReleaseUnavailable: there is no pip here, an index was not reached, or pip failed in another way.
    """
    command = ["index", "versions", *(["--pre"] if prereleases else [])]
    found, printed = _ask(command, package, package, complete=True)
    # Of releases without a source archive pip lists those alone that have a wheel for this machine.
    elsewhere = {version for version, _ in _foreign(printed)}
    if not found and not elsewhere:
        kind = "" if prereleases else "final "
        raise UnknownRelease(f"there is no {kind}release of {package}", nearest=_error(printed), hint=_CHECK)
    listed = re.search(r"^Available versions: (.*)$", printed, re.MULTILINE)
    return sorted({*versions_in(listed[1] if listed else ""), *elsewhere})


def download(package: str, version: Version, folder: str) -> Path | None:
    """Have pip put the wheel of a release into a folder; None where pip succeeds without one.

    Only text is read, so that a wheel for another machine or Python will do where there is none for this one.

    Raises:
        OnlySources, UnknownRelease: every index was reached, and none has a wheel of it; names the closest releases.
        ReleaseUnavailable: there is no pip here, an index was not reached, or pip failed in another way.
    """
    command, wanted, pinned = [*_DOWNLOAD, "--dest", folder], f"{package} {version}", f"{package}=={version}"
    found, printed = _ask(command, pinned, wanted)
    tags = [tag for other, tag in _foreign(printed) if other == version]
    if not found and tags:
        found, _ = _ask([*command, *_options(max(tags, key=_preference))], pinned, wanted)
    if found:
        return next(Path(folder).glob("*.whl"), None)
    listed = _LISTED.search(printed)
    near = ", ".join(map(str, neighbours(version, versions_in(listed[1] if listed else ""))))
    archives = [urllib.parse.unquote(name).rpartition("-")[2] for name in _SOURCES.findall(printed)]
    if version in versions_in(",".join(archives)):
        raise OnlySources(f"there are only source archives of {wanted}", nearest=near, hint="name a release that has a wheel")
    raise UnknownRelease(f"there is no wheel of {wanted}", nearest=near or _error(printed), hint=_CHECK)


def _ask(command: Sequence[str], requirement: str, wanted: str, *, complete: bool = False) -> tuple[bool, str]:
    """Whether pip found what the command is about, and what it printed.

    Args:
        wanted: the same in words.
        complete: the answer counts only if every index that pip is told of was reached.

    Raises:
        ReleaseUnavailable: there is no pip here, an index was not reached, or pip failed in another way.
    """
    if importlib.util.find_spec("pip") is None:
        raise ReleaseUnavailable(
            f"there is no pip here to look for {wanted}", where=sys.executable, hint="install it with `python -m ensurepip`"
        )
    line = [sys.executable, "-m", "pip", *command, *_OPTIONS, requirement]
    # A constraint is about what is to be installed here; it would forbid every other release.
    settings = {**os.environ, "PIP_CONSTRAINT": ""}
    done = subprocess.run(line, capture_output=True, text=True, errors="replace", env=settings, check=False)
    printed = f"{done.stdout}\n{done.stderr}"
    unreached = _UNREACHED.search(printed)
    if unreached and (complete or done.returncode):
        raise ReleaseUnavailable(
            f"an index that pip is to look for {wanted} in cannot be reached",
            nearest=unreached[1],
            hint="check the network and pip's settings (`pip config list`)",
        )
    if done.returncode and "No matching distribution found" not in printed:
        raise ReleaseUnavailable(f"pip failed to look for {wanted}", nearest=_error(printed), hint="try again")
    return done.returncode == 0, printed


def _error(printed: str) -> str:
    return ([text for text in printed.splitlines() if text.startswith("ERROR:")] or printed.split("\n"))[-1]


def _foreign(printed: str) -> list[tuple[Version, Tag]]:
    """The wheels that pip passed over for their tags: version and one of the tags."""
    found = []
    for name in _FOREIGN.findall(printed):
        with suppress(InvalidWheelFilename):
            _, version, _, tags = parse_wheel_filename(urllib.parse.unquote(name))
            found.append((version, min(tags, key=str)))
    return found


def _preference(tag: Tag) -> tuple[bool, bool, bool, int]:
    """Wheels for Python 2 may hold other sources; of the rest a pure one is the smallest, and the newest the likeliest."""
    python = re.sub(r"\D", "", tag.interpreter)
    pure, native = tag.platform == "any", tag.interpreter.startswith(("cp", "py"))
    return not python.startswith("2"), pure, native, int(python[1:] or 0)


def _options(tag: Tag) -> list[str]:
    """What makes pip take a wheel of this tag."""
    implementation, python = re.sub(r"\d", "", tag.interpreter), re.sub(r"\D", "", tag.interpreter)
    return [f"--platform={tag.platform}", f"--python-version={python}", f"--implementation={implementation}", f"--abi={tag.abi}"]


def versions_in(text: str) -> list[Version]:
    """The versions of a comma-separated list, ascending; what is none is left out."""
    found = []
    for word in text.split(","):
        try:
            found.append(Version(word.strip()))
        except InvalidVersion:
            continue
    return sorted(found)


def neighbours(wanted: Version, versions: Iterable[Version]) -> list[Version]:
    """The two final releases before `wanted`, itself where it is one of them, and the two after it."""
    final = sorted(version for version in set(versions) if not version.is_prerelease)
    return [*[v for v in final if v < wanted][-2:], *[v for v in final if v == wanted], *[v for v in final if v > wanted][:2]]
