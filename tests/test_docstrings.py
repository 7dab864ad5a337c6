"""Docstrings begin with a sentence that says what the thing does, which a list of files can be read by."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
KINDS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings() -> Iterator[tuple[str, str]]:
    """By file and line, each docstring; an empty one for a module without."""
    for folder in ("patchwork", "patches", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, KINDS) and text:
                    found = ast.get_docstring(node)
                    if found is not None or isinstance(node, ast.Module):
                        yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", found or ""


def test_no_docstring_opens_with_a_question() -> None:
    openings = {place: text.partition(". ")[0] for place, text in _docstrings()}
    assert [place for place, text in openings.items() if "? " in text or text.partition("\n")[0].endswith("?")] == []


def test_each_module_has_a_docstring() -> None:
    assert [place for place, text in _docstrings() if not text] == []
