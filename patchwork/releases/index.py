"""Which releases of a package are there? Asks the index that pip is set up for."""

from __future__ import annotations

import re

from packaging.version import Version

from ..engine.errors import ReleaseUnavailable
from . import pip


def versions_of(package: str) -> list[Version]:
    """The final releases of a package that have a wheel, ascending, whatever Python they are for.

    Raises:
        UnknownRelease: the index has no such package.
        ReleaseUnavailable: there is no pip here, an index cannot be reached, or pip answers otherwise than it used to.
    """
    printed = pip.run(["index", "versions"], package, complete=True)
    listed = re.search(r"^Available versions: (.*)$", printed, re.MULTILINE)
    found = [version for version in pip.versions_in(listed[1] if listed else "") if not version.is_prerelease]
    if not found:
        raise ReleaseUnavailable(f"pip does not say which releases of {package} there are", hint="name one: PKG==VERSION")
    return found
