"""Which environments the tests run in: the cells of compat_matrix.yaml, and plain Pythons without torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nox
import yaml

nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "virtualenv"
nox.options.download_python = "never"
nox.options.sessions = ["torchless", "compat"]

ROOT = Path(__file__).parent
CELLS: list[dict[str, Any]] = yaml.safe_load((ROOT / "compat_matrix.yaml").read_text())["cells"]
TEST_TOOLS = ["hypothesis", "pytest", "pytest-xdist"]
# As `make test`. A file stays in one process, which then builds its models once; each process holds its own torch.
AT_ONCE = ["--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile"]
# tests/releases starts pip hundreds of times, and others read dozens of wheels: the oldest and the newest Python will do, and
# `make test` on 3.11.
BETWEEN = ("3.11", "3.12")
# The first, a middle and the newest release: what docs/census.md is about.
COUNTED = ("4.57.6", "5.9.0", "5.24.0")
# TRL of the oldest cell and of middle ones. Ten cells take too long for each change; the weekly run has them all.
IN_CI = ("0.22.2", "0.29.1", "1.6.0")
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


def pins(cell: dict[str, Any]) -> dict[str, str]:
    """The packages of a cell and their releases."""
    return {name: str(value) for name, value in cell.items() if name not in ("python", "also")}


def cell_name(cell: dict[str, Any]) -> str:
    """The id of a cell on the command line: nox -s "compat-3.11(transformers 5.9.0, trl 1.6.0)"."""
    return ", ".join(f"{name} {release}" for name, release in pins(cell).items() if name != "torch")


def tags(cell: dict[str, Any]) -> list[str]:
    """What .ci/run adds to `make test`, which runs tests/compat on the pins of constraints.txt."""
    return ["ci"] if pins(cell)["trl"] in IN_CI else []


@nox.session(python=["3.10", "3.11", "3.12", "3.13"])
def torchless(session: nox.Session) -> None:
    """The engine and the command line, in an environment without torch."""
    # Editable, since tests start processes in this folder, where a plain install would be shadowed by the sources.
    session.install("-e", ".", "build", *TEST_TOOLS)
    session.run("python", "-c", "import sys, patchwork; sys.exit('torch' in sys.modules)")
    left_out = ["tests/packing", "tests/compat"]
    if session.python in BETWEEN:
        left_out += ["tests/releases", "tests/test_static_trainers.py", "tests/test_liger_static.py", "tests/test_unsloth_zoo.py"]
    session.run("pytest", "tests", *AT_ONCE, *(f"--ignore={folder}" for folder in left_out), *session.posargs)


@nox.session(python=False)
def cells(session: nox.Session) -> None:
    """Print the session of every cell, one a line."""
    for cell in CELLS:
        print(f"compat-{cell['python']}({cell_name(cell)})")


@nox.session(python=sorted({cell["python"] for cell in CELLS}))
@nox.parametrize("cell", [nox.param(cell, id=cell_name(cell), tags=tags(cell)) for cell in CELLS])
def compat(session: nox.Session, cell: dict[str, Any]) -> None:
    """tests/compat against the real packages of one cell."""
    if session.python != cell["python"]:
        session.skip(f"this cell runs on Python {cell['python']}")
    wanted = [f"{name}=={release}" for name, release in pins(cell).items()]
    constraint = Path(session.create_tmp()) / "constraint.txt"
    constraint.write_text("\n".join(wanted) + "\n")
    # One call to pip: in two, the second may replace what the first pinned.
    session.install("-c", str(constraint), *wanted, *cell.get("also", []), "peft", "matplotlib", "-e", ".", *TEST_TOOLS)
    session.run("pytest", "tests/compat", *AT_ONCE, *session.posargs)


@nox.session(python="3.11")
def families(session: nox.Session) -> None:
    """docs/families.md: each recurrent family, measured on its first, its middle and its newest release."""
    session.install("-e", ".", f"torch=={PINNED['torch']}", f"numpy=={PINNED['numpy']}", "requests")
    folder = Path(session.create_tmp())

    def printed(name: str, *command: str | Path) -> Path:
        path = folder / name
        with path.open("w", encoding="utf-8") as out:
            session.run("python", *map(str, command), stdout=out, stderr=sys.stderr)
        return path

    page = "tests/compat/families_page.py"
    reports = []
    for wheel, names in json.loads(printed("wheels", page, "--wheels").read_text(encoding="utf-8")).items():
        session.install(wheel)  # and what this release requires: tokenizers and huggingface_hub come and go with it
        reports.append(printed(f"{Path(wheel).stem}.json", "tests/compat/report_families.py", *names))
    (ROOT / "docs" / "families.md").write_text(printed("page", page, *reports).read_text(encoding="utf-8"), encoding="utf-8")


@nox.session(python="3.11")
def census(session: nox.Session) -> None:
    """docs/census.md: every causal model type of three releases, stock and with patchwork."""
    session.install("-e", ".", f"torch=={PINNED['torch']}", f"numpy=={PINNED['numpy']}")
    reports = []
    for release in COUNTED:
        session.install(f"transformers=={release}")
        for name, how in (("stock", ["--stock"]), ("patchwork", [])):
            reports.append(Path(session.create_tmp()) / f"{release}-{name}.json")
            command = ["patchwork", "probe", "--all", "--json", "--jobs", "2", *how]
            with reports[-1].open("w", encoding="utf-8") as out:
                session.run(*command, stdout=out, stderr=sys.stderr, success_codes=[0, 1])
    session.run("python", "tests/compat/census_page.py", "--out", "docs/census.md", *map(str, reports))
