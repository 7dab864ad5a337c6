"""Times the check of every patch on every release that compat_matrix.yaml lists, and shows where the time goes.

Reads the sources out of wheels; nothing of them is installed or imported. First from a warm cache with as many processes as
`patchwork matrix` takes, all packages and each alone; then once more in this process, to see what the time is spent on.
`--cold` downloads every wheel into a folder that is removed again, and says how long that took and how much it was.

    python benchmarks/matrix.py [--cold] [--repeats 3]

Exit code 1 if the warm matrix takes more than 60 s, or does not come out as expected.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import libcst

from patchwork.engine import module_plan as prepare
from patchwork.releases import expectations, matrix, trees
from patchwork.releases import module_trials as trial
from patchwork.selection import all_patches

GOAL_SECONDS = 60.0
FILE = Path(__file__).parents[1] / "compat_matrix.yaml"


def check(file: expectations.Matrix, package: str | None = None, workers: int = 2) -> tuple[matrix.Facts, float]:
    """What came out, and the seconds that it took."""
    begin = time.perf_counter()
    facts = matrix.find(file, matrix.selected(file, package), lambda what, done, total: None, workers=workers)
    return facts, time.perf_counter() - begin


class Stopwatch:
    """Seconds by name. What a timed function calls and is timed itself counts there alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = time.perf_counter()

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] = self.seconds.get(self._running[-1], 0.0) + now - self._since
        self._since = now

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        self._switch()
        self._running.append(name)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def around(self, function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        """The same function under the watch; `name` is given its arguments."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timed(name(*args, **kwargs)):
                return function(*args, **kwargs)

        return timed


def compiles(*args: Any, **kwargs: Any) -> str:
    flags = kwargs.get("flags", args[3] if len(args) > 3 else 0)
    return "parsing (ast)" if flags & ast.PyCF_ONLY_AST else "compiling"


def spent(file: expectations.Matrix) -> tuple[dict[str, float], float]:
    """Seconds by what they went into, in one process, and all of them."""
    watch = Stopwatch()
    places: list[tuple[Any, str, Callable[..., str]]] = [
        (trees.Tree, "read", lambda *args: "reading wheels"),
        (trees.Tree, "provides", lambda *args: "reading wheels"),
        (matrix, "fetch_all", lambda *args: "finding wheels"),
        (builtins, "compile", compiles),
        (libcst, "parse_module", lambda *args, **kwargs: "parsing (libcst)"),
        (prepare, "rewrite_module", lambda *args, **kwargs: "finding and editing"),
        (trial, "dry_run", lambda *args: "checking the new code"),
    ]
    with ExitStack() as patched:
        for owner, name, kind in places:
            patched.enter_context(mock.patch.object(owner, name, watch.around(getattr(owner, name), kind)))
        with watch.timed("all else"):
            _, seconds = check(file, workers=1)
    return watch.seconds, seconds


def cold(file: expectations.Matrix) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PATCHWORK_CACHE_DIR=folder):
        facts, seconds = check(file)
    print(f"cold: {seconds:6.1f} s, {facts.downloads} wheels, {facts.size / 1e6:.0f} MB downloaded")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    file = expectations.read(FILE, all_patches())
    if options.cold:
        cold(file)
    facts, seconds = check(file)
    if facts.downloads:
        print(f"{facts.downloads} wheels were not cached: {seconds:.1f} s with the download")
    runs = [check(file)[1] for _ in range(options.repeats)]
    warm = statistics.median(runs)
    wrong = sum(bool(item.mismatches) for item in matrix.compare(file, facts))
    goal = "met" if warm <= GOAL_SECONDS else "MISSED"
    print(f"warm: {warm:6.1f} s, {len(facts.findings)} findings, {os.cpu_count()} cores (at most {GOAL_SECONDS:.0f} s: {goal})")
    for package in dict.fromkeys(expected.package for expected in file.expected.values()):
        facts, seconds = check(file, package)
        print(f"      {seconds:6.1f} s  {package}: {len(facts.findings)} on {len(file.releases[package])} releases")
    parts, seconds = spent(file)
    print(f"one process: {seconds:.1f} s")
    for name, part in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"      {part:6.1f} s  {100 * part / seconds:3.0f} %  {name}")
    print(f"{wrong} patches not as expected" if wrong else "every patch as expected")
    return int(warm > GOAL_SECONDS or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
