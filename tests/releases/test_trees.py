"""What is read out of wheels and folders, byte for byte, and what is said of what cannot be."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from patchwork.engine.errors import ReleaseUnavailable, SourceUnavailable, TargetMissing
from patchwork.releases.trees import Tree, canonical

if TYPE_CHECKING:
    from conftest import Shelf

CORE = b"# coding: latin-1\r\n'\xe9'\r\n"


@pytest.fixture(params=["wheel", "folder"])
def tree(request: pytest.FixtureRequest, shelf: Shelf, tmp_path: Path) -> Tree:
    files = {
        "lib/__init__.py": "",
        "lib/core.py": CORE,
        "lib/models/siglip/__init__.py": "",
        "lib/models/siglip/modeling_siglip.py": "",
        "lib/both.py": "module",
        "lib/both/__init__.py": "package",
        "lib/fast.cpython-311-x86_64-linux-gnu.so": "",
        "alone.py": "alone = 1",
        "quick.abi3.so": "",
    }
    wheel = shelf.wheel("lib", "1.0", files)
    if request.param == "wheel":
        return Tree("lib", "1.0", wheel)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    return Tree("lib", "1.0", tmp_path / "site")


def test_a_module_is_read_byte_for_byte(tree: Tree) -> None:
    source = tree.read("lib.core")
    assert (source.name, source.data) == ("lib.core", CORE)
    assert source.path == f"{tree.path.as_posix()}/lib/core.py"


def test_a_package_comes_before_a_module_of_its_name(tree: Tree) -> None:
    assert tree.read("lib.both").data == b"package"
    assert tree.read("lib.both").path.endswith("/lib/both/__init__.py")


def test_a_name_that_begins_like_a_module_is_none(tree: Tree) -> None:
    with pytest.raises(TargetMissing) as caught:
        tree.read("lib.models.siglipx.modeling_siglipx")
    assert caught.value.what == "lib has no module lib.models.siglipx.modeling_siglipx"
    assert caught.value.where == f"lib 1.0 ({tree.path})"
    assert caught.value.nearest == "lib.models.siglip"
    with pytest.raises(TargetMissing):
        tree.read("lib.cor")


def test_a_module_that_moved_is_found_elsewhere(tree: Tree) -> None:
    with pytest.raises(TargetMissing) as caught:
        tree.read("lib.siglip.modeling_siglip")
    assert caught.value.nearest == "lib.models.siglip.modeling_siglip"


@pytest.mark.parametrize("module", ["lib.fast", "quick"])
def test_a_compiled_module_has_no_source(tree: Tree, module: str) -> None:
    with pytest.raises(SourceUnavailable, match=f"{module} has no Python source"):
        tree.read(module)


def test_top_level_modules_are_packages_files_and_extensions(tree: Tree) -> None:
    assert [name for name in ("lib", "alone", "quick", "li", "libx", "fast") if tree.provides(name)] == ["lib", "alone", "quick"]
    assert not Tree("lib", "1.0", tree.path, ("lib",)).provides("alone")


def test_a_member_whose_checksum_is_wrong_is_a_damaged_wheel(shelf: Shelf) -> None:
    wheel = shelf.lib("1.0", "def f(): return a()")
    wheel.write_bytes(wheel.read_bytes().replace(b"return a()", b"return x()"))
    with pytest.raises(ReleaseUnavailable) as caught:
        Tree("lib", "1.0", wheel).read("lib.core")
    assert "Bad CRC-32" in caught.value.what
    assert caught.value.where == str(wheel)


@pytest.mark.parametrize("keep", [0, 10, 100])
def test_a_cut_wheel_is_a_damaged_wheel(shelf: Shelf, keep: int) -> None:
    wheel = shelf.lib("1.0", "")
    wheel.write_bytes(wheel.read_bytes()[:keep])
    with pytest.raises(ReleaseUnavailable, match="the wheel cannot be opened"):
        Tree("lib", "1.0", wheel).provides("lib")


def test_a_wheel_that_is_replaced_is_read_anew(shelf: Shelf) -> None:
    tree = Tree("lib", "1.0", shelf.lib("1.0", "one"))
    assert tree.read("lib.core").data == b"one"
    shelf.lib("1.0", "three")
    assert tree.read("lib.core").data == b"three"


def test_names_of_distributions_compare_as_pep_503_says() -> None:
    assert canonical("Scikit_.-Learn") == canonical("scikit-learn") == "scikit-learn"
