"""An install holds what the repository holds, under the names it should have."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Runs in the fresh environment; prints one line per name that is wrong, nothing when all is well.
LOOK = """
import importlib, importlib.metadata, importlib.util, pathlib, sys
import patchwork, patchwork.patches
for name in ("torch", "transformers", "trl"):
    importlib.util.find_spec(name) and print("installed without being asked for:", name)
if importlib.util.find_spec("patches"):
    print("patches is a top-level name:", importlib.util.find_spec("patches"))
if patchwork.patches.__name__ != "patchwork.patches":
    print("wrong name:", patchwork.patches.__name__)
for name in sys.argv[1:]:
    importlib.util.find_spec(name) or print("missing:", name)
scripts = importlib.metadata.entry_points(group="console_scripts", name="patchwork")
for script in scripts:
    if script.value != "patchwork.cli:main":
        print("wrong script:", script)
if not scripts:
    print("no console script")
if not (pathlib.Path(patchwork.__file__).parent / "py.typed").is_file():
    print("py.typed is missing")
"""


def modules() -> set[str]:
    """The dotted name under which each source file of the repository is installed."""
    names = set()
    for folder, package in (("patchwork", "patchwork"), ("patches", "patchwork.patches")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            names.add(".".join(parts).removesuffix(".__init__"))
    return names


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "repository"
    # A copy: setuptools leaves build/ and an egg-info behind, and takes stale files from a build/ it finds.
    copy_sources(source)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


def copy_sources(target: Path) -> None:
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("patchwork", "patches"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


def environment(folder: Path, *arguments: str | Path) -> Path:
    """A new environment with what pip installs for these arguments; returns its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *arguments)
    return python


def test_wheel_holds_every_module_and_nothing_at_top_level_but_patchwork(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"patchwork"}
    packed = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in names if ".py" in name}
    assert modules() <= packed
    assert "patchwork/py.typed" in names
    assert any(name.endswith("/LICENSE") for name in names)


def test_plain_install_asks_for_no_torch(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    plain = [line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert {line.split()[1].split(">")[0].lower() for line in plain} == {
        "libcst",
        "packaging",
        "pyyaml",
        "rich",
        "typer",
        "wrapt",
    }


@pytest.mark.slow
def test_installed_wheel_imports_under_its_names(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", wheel)
    assert run(python, "-c", LOOK, *sorted(modules())) == ""


@pytest.mark.slow
def test_editable_install_imports_under_the_same_names(tmp_path: Path) -> None:
    source = tmp_path / "repository"
    copy_sources(source)
    python = environment(tmp_path / "venv", "--editable", source)
    assert run(python, "-c", LOOK, *sorted(modules())) == ""
    # A change of the source is seen without installing again: that is what editable means.
    with (source / "patches" / "__init__.py").open("a") as file:
        file.write("\nADDED = 1\n")
    assert run(python, "-c", "import patchwork.patches; print(patchwork.patches.ADDED)").strip() == "1"


@pytest.mark.slow
def test_installed_package_is_typed(wheel: Path, tmp_path: Path) -> None:
    """A strict type checker takes the annotations of an installed patchwork."""
    pytest.importorskip("mypy")
    python = environment(tmp_path / "venv", "--no-deps", wheel)
    user = tmp_path / "user.py"
    user.write_text("import patchwork\nreveal_type(patchwork.apply)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", python, user.name],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "import-untyped" not in done.stdout, done.stdout
    assert "Report" in done.stdout, done.stdout


def test_running_version_is_the_declared_one() -> None:
    """An install left over from before a release would test something else than this checkout."""
    from importlib.metadata import version

    declared = next(
        line.split('"')[1] for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version")
    )
    assert version("patchwork-packing") == declared
