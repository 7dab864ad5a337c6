"""An anchor missed in what is installed: the last release that fitted is named, as far as the cache of wheels knows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import patchwork
from patchwork import AnchorMissing, Patch, required
from patchwork.api import previews
from patchwork.releases.wheels import fetch

from .conftest import Shelf

FITS, DRIFTED = "def f(x):\n    return g(x)\n", "def f(x):\n    return h(x)\n"
OWN = Patch("own.f", "lib.core:f", [required("g(x)").replace("g(x, 1)")])


@pytest.fixture
def installed(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """`lib` 3.0 with drifted code, on the path; 1.0 and 2.0, which fit, on the shelf."""
    folder = tmp_path / "site" / "lib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text('__version__ = "3.0"\n')
    (folder / "core.py").write_text(DRIFTED)
    for version in ("1.0", "2.0"):
        shelf.lib(version, FITS)
    shelf.lib("2.5", DRIFTED)
    monkeypatch.syspath_prepend(str(folder.parent))
    importlib.invalidate_caches()
    yield shelf
    patchwork.revert()
    for name in [name for name in sys.modules if name.partition(".")[0] == "lib"]:
        del sys.modules[name]


def missed() -> AnchorMissing:
    with pytest.raises(AnchorMissing) as caught:
        patchwork.apply(OWN)
    return caught.value


def test_the_newest_older_release_in_the_cache_that_fits_is_told(installed: Shelf) -> None:
    for version in ("1.0", "2.0", "2.5"):
        fetch("lib", version)
    assert missed().last_match == "lib 2.0"
    assert "last match: lib 2.0" in str(missed())


def test_without_wheels_in_the_cache_nothing_is_told_and_nothing_fetched(installed: Shelf, wheels: Path) -> None:
    assert missed().last_match == ""
    assert not wheels.exists()


def test_that_the_installed_release_itself_fits_means_that_its_file_was_changed(installed: Shelf) -> None:
    installed.lib("3.0", FITS)
    installed.lib("4.0", FITS)
    for version in ("3.0", "4.0"):
        fetch("lib", version)
    assert missed().last_match == "lib 3.0"


def test_reports_and_previews_tell_it_too(installed: Shelf) -> None:
    fetch("lib", "1.0")
    [outcome] = patchwork.apply(OWN, strict=False)
    assert isinstance(outcome.error, AnchorMissing)
    assert outcome.error.last_match == "lib 1.0"
    [item] = previews([OWN])
    assert isinstance(item.outcome.error, AnchorMissing)
    assert item.outcome.error.last_match == "lib 1.0"
