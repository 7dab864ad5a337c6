"""Which copy of a package is used, and which version it is, where several lie on the path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from patchwork.engine.environment.distributions import copies
from patchwork.engine.environment.installed import version_of


def installed(folder: Path, version: str, *, source: str | None = "", editable: Path | None = None) -> Path:
    """A folder with the distribution `lib-x`, its package `lib_x` where `source` is given."""
    info = folder / f"lib_x-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lib-x\nVersion: {version}\n")
    if editable is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": editable.as_uri(), "dir_info": {"editable": True}}))
    if source is not None:
        package(folder, source)
    return folder


def package(folder: Path, source: str) -> str:
    (folder / "lib_x").mkdir(parents=True)
    (folder / "lib_x" / "__init__.py").write_text(source)
    return str(folder / "lib_x" / "__init__.py")


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return sys.path


def test_the_metadata_beside_the_package_counts_wherever_on_the_path(tmp_path: Path, path: list[str]) -> None:
    one, two = installed(tmp_path / "one", "1.0"), installed(tmp_path / "two", "2.0")
    path[:0] = [str(one), str(two)]
    found = copies("lib-x", str(two / "lib_x" / "__init__.py"))
    assert (found.version, found.others) == ("2.0", (f"lib-x 1.0 in {one}",))
    assert version_of("lib-x") == "1.0"


def test_a_package_without_metadata_before_another_copy_says_its_version_itself(tmp_path: Path, path: list[str]) -> None:
    path[:0] = [str(tmp_path / "checkout"), str(installed(tmp_path / "site", "1.0"))]
    package(tmp_path / "checkout", 'import os\n__version__ = "3.0.dev0"\n')
    assert version_of("lib-x") == "3.0.dev0"


@pytest.mark.parametrize("source", ["", "__version__ = '.'.join('12')\n", "__version__ = (\n"])
def test_a_package_that_does_not_say_its_version_has_none(tmp_path: Path, path: list[str], source: str) -> None:
    path.insert(0, str(installed(tmp_path / "site", "1.0")))
    assert copies("lib-x", package(tmp_path / "checkout", source)).version is None


def test_an_editable_install_is_the_folder_that_it_names(tmp_path: Path, path: list[str]) -> None:
    path.insert(0, str(installed(tmp_path / "site", "1.0", source=None, editable=tmp_path / "checkout")))
    assert copies("lib-x", package(tmp_path / "checkout" / "src", "")).version == "1.0"
    assert copies("lib-x", package(tmp_path / "checkout-2", "")).version is None


def test_a_folder_that_stands_on_the_path_twice_is_one_copy(tmp_path: Path, path: list[str]) -> None:
    site = installed(tmp_path / "site", "1.0")
    (tmp_path / "link").symlink_to(site)
    path[:0] = [str(site), str(tmp_path / "link")]
    assert copies("lib-x", str(tmp_path / "link" / "lib_x" / "__init__.py")).others == ()
