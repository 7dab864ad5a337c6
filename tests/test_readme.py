"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_the_examples_of_the_patch_guide_hold(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "patches.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) >= 6
    done = subprocess.run([sys.executable, "-c", "".join(blocks)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_guide_names_every_field_and_edit() -> None:
    import patchwork

    guide = (ROOT / "docs" / "patches.md").read_text(encoding="utf-8")
    for name in ("required", "optional", "one_of", "every", "parameter", "at_start"):
        assert f"{name}(" in guide or f"`{name}`" in guide
        assert name in patchwork.__all__
    error = patchwork.AnchorMissing("x")
    for field in (*vars(error), "diff", "moved_to", "fixed_upstream", "last_match", "command"):
        assert f"`{field}`" in guide
