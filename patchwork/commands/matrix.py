"""The command `patchwork matrix`: checks, shows progress, and asks before it writes."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from ..releases import expectations, matrix, updating
from ..selection import all_patches
from . import matrix_text, progress
from .matrix_text import Result

_errors = Console(stderr=True, highlight=False, soft_wrap=True)


def run(file: Path, package: str | None, *, new: bool, complete: bool) -> Result:
    """Check what the file lists, or what is newer; progress goes to stderr.

    Raises:
        InvalidMatrix, UnknownRelease: the file is wrong, or names what does not exist.
        ReleaseUnavailable: sources cannot be had.
    """
    read = expectations.read(file, all_patches(), complete=complete)
    releases = matrix.selected(read, package)
    newer = matrix.newer(read, list(releases)) if new else None
    if newer is not None:
        releases = {name: item.releases for name, item in newer.items()}
    with progress.shown() as advance:
        facts = matrix.find(read, releases, advance)
    comparisons = matrix.compare(read, facts)
    return Result(read, releases, facts, comparisons, newer, matrix.corrections(read, comparisons, newer))


def write_changes(result: Result, yes: bool) -> bool:
    """Show what an update changes, ask unless `yes`, and write; whether the file now says what was found."""
    if result.failed:
        _errors.print("Nothing is written: a patch that fails is nothing to expect. Mend it first, or narrow its `versions`.")
        return False
    newer = result.newer or {}
    text = updating.updated(
        result.matrix,
        expected={patch: ranges for patch, (_, ranges) in result.changes.items()},
        added={package: item.added for package, item in newer.items() if item.added},
        replaced={package: item.replaced for package, item in newer.items()},
    )
    if text == result.matrix.text:
        _errors.print("The file says so already.")
        return True
    expectations.parse(result.matrix.path, text, all_patches(), complete=False)  # what is written can be read
    for line in matrix_text.changes(result):
        _errors.print(escape(line))
    if not yes and not (sys.stdin.isatty() and typer.confirm(f"Write this into {result.matrix.path}?", err=True)):
        _errors.print("Nothing is written; --yes agrees." if not sys.stdin.isatty() else "Nothing is written.")
        return False
    updating.write(result.matrix.path, text)
    _errors.print(f"{escape(str(result.matrix.path))} is written.")
    return True
