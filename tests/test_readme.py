"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_of_a_patch_prints_what_its_comments_say() -> None:
    (block,) = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Patch(" in code]
    expected = [line.split("#")[1].split() for line in block.splitlines() if line.startswith("print(")]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == expected


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.search(r"@@\w+@@", README)


def test_every_command_is_described() -> None:
    from patchwork.cli import app

    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    described = set(re.findall(r"^\| `patchwork (\w+)", README, re.MULTILINE))
    assert described == names
