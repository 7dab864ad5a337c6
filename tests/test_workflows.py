"""The workflows and the script of CI name what exists: make targets, nox sessions, subcommands and their options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from patchwork.cli import app

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What the shell or the runner's image has; anything else has to be listed here by hand.
SHELL = {"cat", "echo", "exit", "grep", "head", "tail", "test", "if", "else", "fi"}
TOOLS = {"gh", "make", "nox", "patchwork", "python"}


def scripts() -> list[Any]:
    """Each `run` of each workflow, and the script of CI, without comments."""
    found = {".ci/run": (ROOT / ".ci" / "run").read_text()}
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            for number, step in enumerate(job["steps"]):
                assert ("run" in step) != ("uses" in step), (path.name, name, number)
                if "run" in step:
                    found[f"{path.stem}-{name}-{number}"] = re.sub(r"\$\{\{.*?\}\}", "EXPRESSION", step["run"])
    return [pytest.param(re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE), id=name) for name, text in found.items()]


def test_every_workflow_says_when_it_runs_and_what_it_may_do() -> None:
    assert [path.name for path in WORKFLOWS] == ["cells.yml", "ci.yml", "releases.yml"]
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert set(workflow) >= {"name", "jobs", "permissions", True}  # `on` is a truth value to YAML 1.1
        assert workflow["permissions"]["contents"] == "read"


@pytest.mark.parametrize("script", scripts())
def test_every_command_of_a_script_exists(script: str) -> None:
    subprocess.run(["bash", "-n", "-c", script], check=True)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+)", script)) <= set(targets)
    assert set(" ".join(re.findall(r"^make (.*)", script)).split()) <= set(targets)
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert set(re.findall(r'--session "?(\w+)', script)) <= {*sessions, "EXPRESSION"}
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, rest in re.findall(r"\bpatchwork ([a-z]+)(.*)", script):
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known


def test_workflows_use_tools_that_the_runner_has() -> None:
    for parameter in scripts()[1:]:
        lines = [line.split() for line in parameter.values[0].splitlines() if line.strip()]
        assert {words[0] for words in lines if "=" not in words[0]} <= SHELL | TOOLS


def test_ci_runs_the_oldest_a_middle_and_the_newest_cell() -> None:
    """`make test` runs the cell of constraints.txt, which is the newest, and `.ci/run` those tagged ci."""
    pytest.importorskip("nox")
    command = [sys.executable, "-m", "nox", "--no-color", "--list", "--session", "compat"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    cells = re.findall(r"^\* compat-[\d.]+\((.*?)\)( \[ci\])? ->", listed, re.MULTILINE)
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert len(cells) == len(yaml.safe_load((ROOT / "compat_matrix.yaml").read_text())["cells"])
    assert cells[-1] == (f"transformers {pins['transformers']}, trl {pins['trl']}", "")
    tagged = [name for name, tag in cells if tag]
    assert cells[0][0].split(",")[0] == tagged[0].split(",")[0]
    assert len(tagged) > 1
    assert "--session compat --tags ci" in (ROOT / ".ci" / "run").read_text()
