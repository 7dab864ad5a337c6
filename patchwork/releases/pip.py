"""How is pip asked, and what does its answer mean? It runs as a process of its own, as its authors want it used."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from ..engine.errors import ReleaseUnavailable, UnknownRelease

_OPTIONS = ("-vv", "--no-input", "--disable-pip-version-check", "--only-binary=:all:", "--ignore-requires-python")
# pip goes on without an index that it cannot reach, and says so only when asked to be verbose. A 404 is an answer.
_UNREACHED = re.compile(r"^\s*(Could not fetch URL (?!.*: 404 Client Error).*)$", re.MULTILINE)
_LISTED = re.compile(r"\(from versions: (.*?)\)")


def run(command: Sequence[str], package: str, version: Version | None = None, *, complete: bool = False) -> str:
    """What pip prints for a command about the wheels of a package, or of one release of it.

    Args:
        complete: the answer counts only if every index that pip is told of was reached.

    Raises:
        UnknownRelease: all were reached, and none has it; names the closest releases.
        ReleaseUnavailable: there is no pip, an index was not reached, or pip failed in another way.
    """
    wanted = package if version is None else f"{package} {version}"
    if importlib.util.find_spec("pip") is None:
        raise ReleaseUnavailable(
            f"there is no pip here to look for {wanted}",
            where=sys.executable,
            hint="install it with `python -m ensurepip`, or give --against a wheel or a folder",
        )
    requirement = package if version is None else f"{package}=={version}"
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
            hint="check the network and pip's settings (`pip config list`), or give --against a wheel or a folder",
        )
    if done.returncode == 0:
        return printed
    said = ([text for text in printed.splitlines() if text.startswith("ERROR:")] or printed.split("\n"))[-1]
    if "No matching distribution found" not in printed:
        hint = "try again, or give --against a wheel or a folder"
        raise ReleaseUnavailable(f"pip failed to look for {wanted}", nearest=said, hint=hint)
    listed = _LISTED.search(printed)
    near = neighbours(version, versions_in(listed[1])) if version and listed else []
    raise UnknownRelease(
        f"there is no wheel of {wanted}" if version else f"no final release of {package} has a wheel",
        nearest=", ".join(map(str, near)) or said,
        hint="check the name, and where pip looks (`pip config list`); what has no wheel can be given as a folder",
    )


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
    """The two final releases before `wanted` and the two after it."""
    final = sorted(version for version in set(versions) if not version.is_prerelease)
    return [*[v for v in final if v < wanted][-2:], *[v for v in final if v > wanted][:2]]
