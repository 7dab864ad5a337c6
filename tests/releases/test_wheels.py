"""The cache of wheels: no network where it is not needed, and nothing damaged left behind by whatever goes wrong."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from patchwork.engine.errors import ReleaseUnavailable, UnknownRelease
from patchwork.releases import pip
from patchwork.releases.index import versions_of
from patchwork.releases.wheels import cached, fetch, fetch_all, fetch_each

if TYPE_CHECKING:
    from conftest import Shelf


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_a_cached_wheel_needs_neither_network_nor_pip(shelf: Shelf, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.lib("1.0.0", "one")
    first = fetch("Lib", "1")
    assert first == wheels / "lib-1.0.0-py3-none-any.whl"
    assert [path.name for path in wheels.iterdir()] == [first.name]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fetch("lib", Version("1.0.0")) == first
    assert cached("lib") == {Version("1.0.0"): first}


def test_a_truncated_cached_wheel_is_fetched_again(shelf: Shelf, wheels: Path) -> None:
    whole = shelf.lib("1.0", "one").read_bytes()
    wheel = fetch("lib", "1.0")
    wheel.write_bytes(whole[:100])
    assert cached("lib") == {}
    assert fetch("lib", "1.0").read_bytes() == whole


def test_a_wheel_that_is_damaged_at_its_source_is_not_kept(shelf: Shelf, wheels: Path) -> None:
    wheel = shelf.lib("1.0", "one")
    wheel.write_bytes(wheel.read_bytes()[:100])
    with pytest.raises(ReleaseUnavailable) as caught:
        fetch("lib", "1.0")
    assert "lib 1.0" in caught.value.what
    assert list(wheels.iterdir()) == []


def test_a_release_that_does_not_exist_names_the_closest(shelf: Shelf) -> None:
    for version in ("0.1", "1.0", "1.1", "1.3rc1", "1.4", "2.0", "3.0"):
        shelf.lib(version, "")
    with pytest.raises(UnknownRelease) as caught:
        fetch("lib", "1.3")
    assert caught.value.what == "there is no wheel of lib 1.3"
    assert caught.value.nearest == "1.0, 1.1, 1.4, 2.0"


def test_a_package_that_does_not_exist(shelf: Shelf) -> None:
    with pytest.raises(UnknownRelease, match=r"there is no wheel of lib 1\.3"):
        fetch("lib", "1.3")
    with pytest.raises(UnknownRelease, match="there is no final release of lib"):
        versions_of("lib")


def test_no_network_is_not_taken_for_no_release(unplugged: None) -> None:
    for ask in (lambda: fetch("lib", "1.0"), lambda: versions_of("lib")):
        with pytest.raises(ReleaseUnavailable, match="cannot be reached") as caught:
            ask()
        assert caught.value.nearest.startswith("Could not fetch URL http://127.0.0.1:9/lib/: connection error")


def test_half_an_index_is_not_taken_for_all_releases(shelf: Shelf, unplugged: None) -> None:
    shelf.lib("1.0", "")
    assert fetch("lib", "1.0").is_file()
    with pytest.raises(ReleaseUnavailable, match="cannot be reached"):
        versions_of("lib")


def test_without_pip_it_is_said_how_to_go_on(shelf: Shelf, no_pip: None) -> None:
    with pytest.raises(ReleaseUnavailable) as caught:
        fetch("lib", "1.0")
    assert caught.value.what == "there is no pip here to look for lib 1.0"
    assert "python -m ensurepip" in caught.value.hint


def test_a_constraint_on_what_is_installed_here_forbids_no_release(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.lib("1.0", "")
    shelf.lib("2.0", "")
    (tmp_path / "constraints.txt").write_text("lib==2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    assert fetch("lib", "1.0").name == "lib-1.0-py3-none-any.whl"


def test_the_releases_are_final_ones_in_order(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PRE", "1")  # what a user has set for installing
    for version in ("1.10", "1.9", "2.0rc1", "1.9.post1", "2.0.dev1"):
        shelf.lib(version, "")
    assert list(map(str, versions_of("lib"))) == ["1.9", "1.9.post1", "1.10"]


def test_prereleases_are_listed_when_asked_for(shelf: Shelf) -> None:
    for version in ("1.0", "2.0rc1"):
        shelf.lib(version, "")
    assert list(map(str, versions_of("lib", prereleases=True))) == ["1.0", "2.0rc1"]


def test_a_release_without_a_wheel_or_with_one_for_another_machine_is_listed(shelf: Shelf) -> None:
    shelf.lib("1.0", "")
    (shelf.folder / "lib-1.1.tar.gz").touch()
    shelf.wheel("lib", "1.2", {}, filename="lib-1.2-cp27-cp27m-win32.whl")
    assert list(map(str, versions_of("lib"))) == ["1.0", "1.1", "1.2"]


@pytest.mark.parametrize(
    ("tags", "taken"),
    [
        (["cp27-cp27m-win32"], 0),
        (["cp37-cp37m-macosx_10_9_x86_64"], 0),
        (["cp36-abi3-manylinux_2_5_s390x.manylinux1_s390x"], 0),
        (["pp37-pypy37_pp73-win_amd64"], 0),
        (["py2-none-any"], 0),
        (["cp27-cp27m-win32", "pp311-pypy311_pp73-win32", *(f"cp3{minor}-cp3{minor}-win32" for minor in range(5, 11))], 7),
        (["cp37-cp37m-win32", "py399-none-any", "py2-none-any"], 1),
        (["py3-none-win32", "cp27-cp27m-win32"], 0),
    ],
)
def test_a_wheel_for_another_machine_will_do(shelf: Shelf, tags: list[str], taken: int) -> None:
    for tag in tags:
        shelf.wheel("lib", "1.0", {"lib/core.py": tag}, filename=f"lib-1.0-{tag}.whl")
    assert fetch("lib", "1.0").name == f"lib-1.0-{tags[taken]}.whl"


def test_a_wheel_for_this_machine_comes_before_others(shelf: Shelf) -> None:
    shelf.wheel("lib", "1.0", {}, filename="lib-1.0-cp399-cp399-win32.whl")
    shelf.lib("1.0", "")
    assert fetch("lib", "1.0").name == "lib-1.0-py3-none-any.whl"


@pytest.mark.parametrize("name", ["lib-1.0.tar.gz", "lib-1.0.zip"])
def test_a_release_of_source_archives_alone_is_called_that(shelf: Shelf, name: str) -> None:
    shelf.lib("1.1", "")
    (shelf.folder / name).touch()
    with pytest.raises(UnknownRelease) as caught:
        fetch("lib", "1.0")
    assert caught.value.what == "there are only source archives of lib 1.0"
    assert caught.value.nearest == "1.1"
    [missing, wheel] = fetch_each([("lib", "1.0"), ("lib", "1.1")])
    assert isinstance(missing, UnknownRelease)
    assert isinstance(wheel, Path)


def test_no_network_ends_the_fetching_of_what_may_be_missing(unplugged: None) -> None:
    with pytest.raises(ReleaseUnavailable, match="cannot be reached"):
        fetch_each([("lib", "1.0")])


def test_a_download_that_is_interrupted_leaves_nothing(shelf: Shelf, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(package: str, version: Version, folder: str) -> Path:
        (Path(folder) / "lib-1.0-py3-none-any.whl").write_bytes(b"PK")
        raise KeyboardInterrupt

    monkeypatch.setattr(pip, "download", half)
    with pytest.raises(KeyboardInterrupt):
        fetch("lib", "1.0")
    assert list(wheels.iterdir()) == []


def test_two_processes_may_fetch_the_same_at_once(shelf: Shelf, wheels: Path) -> None:
    whole = shelf.lib("1.0", "x" * 1_000_000).read_bytes()
    code = "from patchwork.releases.wheels import fetch; print(fetch('lib', '1.0'))"
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0].strip() for process in running]
    assert said == [str(wheels / "lib-1.0-py3-none-any.whl")] * 2
    assert [path.read_bytes() for path in wheels.iterdir()] == [whole]


def test_several_are_fetched_in_the_order_asked_for(shelf: Shelf) -> None:
    for version in ("1.0", "1.1", "1.2"):
        shelf.lib(version, version)
    known = fetch("lib", "1.1")
    told: list[tuple[int, int, bool]] = []
    pairs = [("lib", "1.2"), ("lib", "1.1"), ("lib", "1.0"), ("lib", "1.2")]
    found = fetch_all(pairs, lambda done, total, path: told.append((done, total, path is None)))
    assert [path.name[4:7] for path in found] == ["1.2", "1.1", "1.0", "1.2"]
    assert found[1] == known
    assert told == [(0, 2, True), (1, 2, False), (2, 2, False)]
    told.clear()
    assert fetch_all(pairs, lambda done, total, path: told.append((done, total, path is None))) == found
    assert told == []


def test_the_first_failure_ends_the_fetching(shelf: Shelf) -> None:
    shelf.lib("1.0", "")
    with pytest.raises(UnknownRelease, match=r"lib 9\.9"):
        fetch_all([("lib", "1.0"), ("lib", "9.9")])


def test_a_cache_that_cannot_be_written_is_said(shelf: Shelf, tmp_path: Path) -> None:
    shelf.lib("1.0", "")
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(ReleaseUnavailable, match="cannot be kept") as caught:
        fetch("lib", "1.0")
    assert "PATCHWORK_CACHE_DIR" in caught.value.hint


def test_what_is_no_version_is_no_release(shelf: Shelf) -> None:
    with pytest.raises(UnknownRelease, match="'newest' is no release of lib"):
        fetch("lib", "newest")
