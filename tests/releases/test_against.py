"""Every form of `--against`, and what is said of one that names nothing."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from patchwork import Patch
from patchwork.engine.errors import PatchError, ReleaseUnavailable, UnknownRelease
from patchwork.releases.against import packages_of
from patchwork.releases.against import resolve as meaning
from patchwork.releases.pip import OnlySources
from patchwork.releases.trees import Tree

if TYPE_CHECKING:
    from conftest import Shelf

LIB = {"lib": "lib"}
SKLEARN = {"sklearn": "scikit-learn"}


def resolve(text: str, packages: dict[str, str]) -> tuple[Tree, ...]:
    return meaning(text, packages).trees


def versions(trees: Iterable[Tree]) -> list[str | None]:
    return [tree.version for tree in trees]


def refused(text: str | Path, packages: dict[str, str] = LIB, kind: type[PatchError] = UnknownRelease) -> PatchError:
    with pytest.raises(kind) as caught:
        resolve(str(text), packages)
    assert type(caught.value) is kind
    return caught.value


def write(folder: Path, **files: str) -> Path:
    """Files by their path, `__` for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def package(folder: Path, name: str = "lib", text: str = "") -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    return folder


def installed(folder: Path, name: str, version: str) -> Path:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


@pytest.fixture
def releases(shelf: Shelf, keep: Callable[[], None]) -> Shelf:
    for version in ("1.0", "1.1", "1.2", "1.10", "2.0", "3.0rc1"):
        shelf.lib(version, version)
    keep()
    return shelf


def test_a_release(releases: Shelf) -> None:
    [tree] = resolve("lib==1.1", LIB)
    assert (tree.package, tree.version, tree.read("lib.core").data) == ("lib", "1.1", b"1.1")
    assert versions(resolve(" LIB == 1.1.0", LIB)) == ["1.1"]


def test_a_range_is_ascending_and_final(releases: Shelf) -> None:
    assert versions(resolve("lib>=1.1,<2", LIB)) == ["1.1", "1.2", "1.10"]
    assert versions(resolve("lib==1.*", LIB)) == ["1.0", "1.1", "1.2", "1.10"]


def test_a_package_is_its_newest_final_release(releases: Shelf) -> None:
    assert versions(resolve("lib", LIB)) == ["2.0"]


def test_a_prerelease_has_to_be_named(releases: Shelf) -> None:
    assert versions(resolve("lib==3.0rc1", LIB)) == ["3.0rc1"]


def test_a_range_that_names_a_prerelease_takes_them_into_account(shelf: Shelf, keep: Callable[[], None]) -> None:
    for version in ("1.0", "2.0.dev1", "2.0rc1", "2.0", "3.0rc1", "3.0"):
        shelf.lib(version, "")
    keep()
    assert versions(resolve("lib>=2.0.dev2,<3", LIB)) == ["2.0rc1", "2.0"]
    assert versions(resolve("lib>2.0rc1", LIB)) == ["2.0", "3.0rc1", "3.0"]
    assert versions(resolve("lib>=1,!=2.0rc1", LIB)) == ["1.0", "2.0", "3.0"]


def test_a_range_goes_on_without_the_releases_that_have_no_wheel(shelf: Shelf) -> None:
    for version in ("1.0", "1.3"):
        shelf.lib(version, "")
    for version in ("1.1", "1.2"):
        (shelf.folder / f"lib-{version}.tar.gz").touch()
    found = meaning("lib>=1", LIB)
    assert versions(found.trees) == ["1.0", "1.3"]
    assert [(left.package, left.version, left.why) for left in found.left_out] == [
        ("lib", "1.1", "only source archives"),
        ("lib", "1.2", "only source archives"),
    ]
    for text in ("lib==1.2", "lib>1.0,<1.3"):
        error = refused(text, kind=OnlySources)
        assert (error.what, error.nearest) == ("there are only source archives of lib 1.2", "1.0, 1.3")
        assert "give its folder" in error.hint
        assert "!=" in error.hint


def test_an_unknown_package_is_known_by_its_newest_wheel(shelf: Shelf) -> None:
    shelf.wheel("libfork", "1.0", {"lib/__init__.py": ""})
    shelf.wheel("other", "1.0", {"other.py": ""})
    for name in ("libfork", "other"):
        (shelf.folder / f"{name}-2.0.tar.gz").touch()
    assert versions(resolve("libfork>=1", LIB)) == ["1.0"]
    assert refused("other>=1").what == "no selected patch is for other 1.0"


def test_above_the_newest_release_that_one_is_near(releases: Shelf) -> None:
    assert refused("lib>2.0").nearest == "1.2, 1.10, 2.0"


def test_how_to_go_on_without_an_index(unplugged: None) -> None:
    assert refused("lib==1.0", kind=ReleaseUnavailable).hint.endswith("or give --against a wheel or a folder")


def test_a_range_that_holds_nothing_names_what_is_near(releases: Shelf) -> None:
    error = refused("lib>1.2,<1.3")
    assert error.what in ("no release of lib is in <1.3,>1.2", "no release of lib is in >1.2,<1.3")
    assert error.nearest == "1.0, 1.1, 1.2, 1.10, 2.0"
    assert error.hint == "the releases go from 1.0 to 2.0"


def test_a_package_of_prereleases_alone(shelf: Shelf) -> None:
    shelf.lib("1.0rc1", "")
    assert refused("lib").what == "there is no final release of lib"


def test_the_distribution_may_be_called_otherwise_than_the_module(shelf: Shelf) -> None:
    shelf.wheel("Scikit-Learn", "1.0", {"sklearn/__init__.py": ""})
    for text in ("scikit_learn==1.0", "SCIKIT.learn==1.0", "sklearn==1.0"):
        [tree] = resolve(text, SKLEARN)
        assert (tree.package, tree.version) == ("scikit-learn", "1.0")
        assert tree.provides("sklearn")


def test_what_a_package_is_called_follows_from_the_patches(patch: Callable[..., Patch]) -> None:
    made = [
        patch("a", module="sklearn.svm"),
        patch("b", module="sklearn.svm", scikit_learn=">=1"),
        patch("c", module="unsloth_zoo.core", unsloth_zoo=">=1", torch=">=2"),
        patch("d", module="lib.core", numpy=">=1", torch=">=2"),
    ]
    assert packages_of(made) == {"sklearn": "scikit-learn", "unsloth_zoo": "unsloth-zoo", "lib": "lib"}


def test_an_unknown_package_is_seen_before_all_of_its_releases_are_fetched(shelf: Shelf, wheels: Path) -> None:
    for version in ("1.0", "2.0", "3.0"):
        shelf.wheel("other", version, {"other.py": ""})
    assert refused("other>=1").what == "no selected patch is for other 3.0"
    assert [path.name for path in wheels.iterdir()] == ["other-3.0-py3-none-any.whl"]
    shelf.wheel("libfork", "1.0", {"lib/__init__.py": ""})
    assert versions(resolve("libfork>=1", LIB)) == ["1.0"]


@pytest.mark.parametrize("text", ["", "  ", "lib=1.0", "lib==", "lib>=new", "lib[all]==1.0", "lib==1.0; python_version>'3'", "@"])
def test_what_is_no_form_at_all_is_told_the_forms(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "PKG==5.9.0" in refused(text).hint


def test_a_wheel_is_what_its_metadata_say(shelf: Shelf) -> None:
    for path in (shelf.lib("1.0", ""), shelf.wheel("lib", "1.1", {"lib.py": ""}, filename="renamed.whl")):
        [tree] = resolve(str(path), LIB)
        assert (tree.package, tree.path) == ("lib", path)
    assert tree.version == "1.1"


def test_a_wheel_of_another_package(shelf: Shelf) -> None:
    path = shelf.wheel("other", "1.0", {"other.py": ""})
    error = refused(path)
    assert (error.what, error.where) == ("no selected patch is for other 1.0", str(path))
    assert error.hint == "the patches selected are for lib"


def test_a_zip_or_another_file_is_no_wheel(tmp_path: Path) -> None:
    archive, text = tmp_path / "lib.zip", tmp_path / "lib.tar.gz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("lib/__init__.py", "")
    assert "it holds no *.dist-info/METADATA" in refused(archive).what
    text.touch()
    assert "neither a wheel nor a folder" in refused(text).what


def test_a_file_that_is_called_a_wheel_and_is_none_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "lib-1.0-py3-none-any.whl"
    path.write_text("<html>")
    assert refused(path, kind=ReleaseUnavailable).where == str(path)


def test_a_file_that_is_not_there_names_its_like(tmp_path: Path) -> None:
    (tmp_path / "lib-1.0-py3-none-any.whl").touch()
    assert refused(tmp_path / "lib-1.1-py3-none-any.whl").nearest == "lib-1.0-py3-none-any.whl"
    assert "no file or folder" in refused("./nothing/at/all").what


def test_site_packages_hold_a_tree_for_each_wanted_package(tmp_path: Path) -> None:
    package(installed(tmp_path, "lib", "1.5"))
    package(installed(tmp_path, "scikit_learn", "1.6"), "sklearn", "__version__ = '0.0'")
    package(installed(tmp_path, "other", "1.7"), "other")
    trees = resolve(str(tmp_path), LIB | SKLEARN)
    assert [(tree.package, tree.version) for tree in trees] == [("lib", "1.5"), ("scikit-learn", "1.6")]
    assert [[top for top in ("lib", "sklearn", "other") if tree.provides(top)] for tree in trees] == [["lib"], ["sklearn"]]


def test_two_metadata_of_one_package_are_settled_by_the_package(tmp_path: Path) -> None:
    package(installed(installed(tmp_path, "lib", "1.5"), "lib", "1.6"), text="__version__ = '1.6'")
    assert versions(resolve(str(tmp_path), LIB)) == ["1.6"]


def test_an_editable_install_is_not_followed(tmp_path: Path) -> None:
    package(installed(installed(tmp_path, "lib", "1.5"), "sklearn", "1"), "sklearn")
    error = refused(tmp_path, LIB | {"sklearn": "sklearn"}, ReleaseUnavailable)
    assert error.what == "lib is installed there without its files, probably as editable"
    assert versions(resolve(str(tmp_path), {"sklearn": "sklearn"})) == ["1"]


@pytest.mark.parametrize("layout", [".", "src"])
def test_a_source_tree(tmp_path: Path, layout: str) -> None:
    write(tmp_path, **{"pyproject.toml": "[project]\nname = 'lib'\nversion = \"1.4\"\n[tool.x]\nversion = '9'\n"})
    package(tmp_path / layout, text="__version__: str = '5.25.0.dev0'\n")
    [tree] = resolve(str(tmp_path), LIB)
    assert (tree.version, tree.path) == ("5.25.0.dev0", tmp_path / layout)
    (tmp_path / layout / "lib" / "__init__.py").write_text("__version__ = read()\nif True:\n    __version__ = '1'\n")
    assert versions(resolve(str(tmp_path), LIB)) == ["1.4"]
    (tmp_path / "pyproject.toml").write_text("[project]\ndynamic = ['version']\n[tool.x]\nversion = '9'\n")
    assert versions(resolve(str(tmp_path), LIB)) == [None]


def test_a_package_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(installed(tmp_path, "lib", "1.5"))
    package(tmp_path, "sklearn")
    for text in (str(tmp_path / "lib"), f"{tmp_path}/lib/"):
        [tree] = resolve(text, LIB | SKLEARN)
        assert (tree.package, tree.version) == ("lib", "1.5")
    monkeypatch.chdir(tmp_path / "lib")
    assert versions(resolve(".", LIB)) == ["1.5"]


def test_an_init_that_is_no_python_leaves_the_version_unknown(tmp_path: Path) -> None:
    assert versions(resolve(str(package(tmp_path, text="def")), LIB)) == [None]


def test_a_package_comes_before_a_folder_of_its_name(releases: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package(tmp_path / "checkout", text="__version__ = '9'"))
    assert versions(resolve("lib", LIB)) == ["2.0"]
    assert versions(resolve("./lib", LIB)) == ["9"]
    assert meaning("lib", LIB).note == "lib: the newest release; the folder ./lib is meant by ./lib"
    assert meaning("lib==2.0", LIB).note == ""
    monkeypatch.chdir(tmp_path)
    assert versions(resolve("checkout", LIB)) == ["9"]
    (tmp_path / "lib").mkdir()
    assert meaning("lib", LIB).note == ""  # holds no Python


def test_a_package_that_the_index_lacks_may_be_the_folder(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package(tmp_path / "checkout"))
    assert refused("lib").hint.endswith("; the folder ./lib is meant by ./lib")


def test_a_folder_without_any_of_the_packages(tmp_path: Path) -> None:
    assert refused(tmp_path).what == f"{tmp_path} is empty"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "notes.txt").touch()
    error = refused(tmp_path, LIB | SKLEARN)
    assert error.what == f"{tmp_path} holds none of the packages that patches are for"
    assert (error.nearest, "lib, scikit-learn (sklearn)" in error.hint) == ("lib", True)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the rights of a folder do not bind this user")
def test_a_folder_that_may_not_be_read(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    assert "cannot be read" in refused(tmp_path, kind=ReleaseUnavailable).what
