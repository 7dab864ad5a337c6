"""Lists the releases of a package, by the index that pip is set up for."""

from __future__ import annotations

from packaging.version import Version

from ..engine.errors import ReleaseUnavailable
from . import pip


def versions_of(package: str, *, prereleases: bool = False) -> list[Version]:
    """The final releases of a package, ascending, whatever Python they are for; some may have source archives alone.

    Args:
        prereleases: those count as well.

    Raises:
        UnknownRelease: the index has no such package.
        ReleaseUnavailable: there is no pip here, an index cannot be reached, or pip answers otherwise than it used to.
    """
    found = [version for version in pip.versions(package, prereleases=prereleases) if prereleases or not version.is_prerelease]
    if not found:
        raise ReleaseUnavailable(f"pip does not say which releases of {package} there are", hint="try another release of pip")
    return found
