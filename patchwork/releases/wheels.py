"""Finds the wheel of a release in the cache, or has pip fetch it; several processes may do so at once."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..engine.environment.cache_folder import cache_dir
from ..engine.errors import ReleaseUnavailable, UnknownRelease
from . import pip
from .trees import canonical

_AT_ONCE = 4  # pip processes; the network is the limit, and each takes half a second of a core

# Called with the number of wheels fetched, the number to fetch, and the wheel fetched last (None at the beginning).
Progress = Callable[[int, int, "Path | None"], None]


def fetch(package: str, version: str | Version) -> Path:
    """The wheel of one release; a cached one needs no network.

    Raises:
        UnknownRelease: there is no such release; names the closest.
        ReleaseUnavailable: there is no pip here, no network, or the wheel is damaged.
    """
    wanted = _version(package, version)
    return cached(package).get(wanted) or _download(package, wanted)


def cached(package: str) -> dict[Version, Path]:
    """The wheels of a package that are in the cache, by release, ascending; a file that is no archive does not count."""
    found = {}
    for path in sorted(_folder().glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if name == canonical(package) and zipfile.is_zipfile(path):
            found[version] = path
    return dict(sorted(found.items()))


def fetch_all(pairs: Sequence[tuple[str, str | Version]], progress: Progress | None = None) -> list[Path]:
    """The wheels of several releases (package, version), in their order; what is not cached is fetched, a few at a time.

    Args:
        progress: called once before the first download and after each one; never where all are cached.

    Raises:
        UnknownRelease, ReleaseUnavailable: as `fetch`; the first failure ends it.
    """
    return [path for path in _fetched(pairs, progress, ()) if isinstance(path, Path)]


def fetch_each(pairs: Sequence[tuple[str, str | Version]], progress: Progress | None = None) -> list[Path | UnknownRelease]:
    """The same where some releases may have no wheel: of such a one, the error takes the wheel's place.

    Raises:
        ReleaseUnavailable: as `fetch`; the first failure ends it.
    """
    return _fetched(pairs, progress, (UnknownRelease,))


def _fetched(
    pairs: Sequence[tuple[str, str | Version]], progress: Progress | None, kept: tuple[type[UnknownRelease], ...]
) -> list[Path | UnknownRelease]:
    wanted = [(package, _version(package, version)) for package, version in pairs]
    known = {package: cached(package) for package, _ in wanted}
    found: dict[tuple[str, Version], Path | UnknownRelease] = {
        (package, version): known[package][version] for package, version in wanted if version in known[package]
    }
    if missing := [pair for pair in dict.fromkeys(wanted) if pair not in found]:
        found.update(_download_all(missing, progress or (lambda done, total, path: None), kept))
    return [found[pair] for pair in wanted]


def _download_all(
    pairs: Sequence[tuple[str, Version]], progress: Progress, kept: tuple[type[UnknownRelease], ...]
) -> dict[tuple[str, Version], Path | UnknownRelease]:
    progress(0, len(pairs), None)
    found: dict[tuple[str, Version], Path | UnknownRelease] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(_download, *pair): pair for pair in pairs}
        try:
            for future in as_completed(running):
                wheel = None
                try:
                    wheel = found[running[future]] = future.result()
                except kept as error:
                    found[running[future]] = error
                progress(len(found), len(pairs), wheel)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return found


def _download(package: str, version: Version) -> Path:
    """Into a folder of its own first, so that neither an end halfway nor another process leaves half a wheel in the cache."""
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetching-") as temporary:
            wheel = pip.download(package, version, temporary)
            if wheel is None or not zipfile.is_zipfile(wheel):
                what = f"the wheel of {package} {version} is damaged where pip found it"
                raise ReleaseUnavailable(what, hint="clear that place, or wait until it is repaired")
            os.replace(wheel, folder / wheel.name)
            return folder / wheel.name
    except OSError as error:
        raise ReleaseUnavailable(
            f"the wheel of {package} {version} cannot be kept: {error}",
            where=str(folder),
            hint="free some space, or choose another folder with PATCHWORK_CACHE_DIR",
        ) from None


def _folder() -> Path:
    return cache_dir() / "wheels"


def _version(package: str, version: str | Version) -> Version:
    try:
        return version if isinstance(version, Version) else Version(version)
    except InvalidVersion:
        raise UnknownRelease(f"{version!r} is no release of {package}", hint="write such as 5.9.0") from None
