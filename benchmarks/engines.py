"""Runs the hard cases of source rewriting on patchwork, on patchy, and on getsource + str.replace + exec + setattr.

Every input of tests/engine/hard_cases goes through each tool, in a process of its own, and comes out as

    right   what the row asks for, a refusal where it asks for one
    loud    an error where the row asks for none, and nothing half done
    wrong   no error, and the function does something else than it should; or an error with a part of it done

A row counts for a tool as its worst input does. Other tools are given what people write for them: a unified diff against the
function that the change was written for (patchy), the text and what it becomes (getsource, which checks that it is there, as
many do not), and a handle on the function that lies below decorators. What a tool does not set out to do is n/a. Goal: patchwork
has no wrong input, and at most three loud ones.

    pip install 'patchwork-packing[bench]'
    python benchmarks/engines.py [--rows 1,2,17] [--verbose]
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import types
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "engine"))

from hard_cases import ROWS  # noqa: E402
from hard_cases.row import Change, Input, text_edit  # noqa: E402
from hard_cases.running import Patchwork, run  # noqa: E402

TOOLS = ("patchwork", "patchy", "getsource")
NOT_ASKED = "n/a"
ORDER = (NOT_ASKED, "right", "loud", "wrong")  # from best to worst
MOST_LOUD = 3
TIMEOUT_SECONDS = 60


class Text:
    """What the two tools on text share: the input, for the function that a change was written for."""

    def __init__(self, item: Input) -> None:
        self.item = item
        self.undo: list[Callable[[], object]] = []

    def apply(self, changes: Iterable[Change]) -> None:
        for wanted in changes:
            self.one(wanted)

    def revert(self, changes: Iterable[Change]) -> None:
        while self.undo:
            self.undo.pop()()

    def one(self, wanted: Change) -> None:
        raise NotImplementedError

    def function(self, wanted: Change) -> types.FunctionType:
        """The object that the tool's user would name."""
        module = import_module(wanted.module)
        if wanted.handle:
            return eval(wanted.handle, vars(module))  # type: ignore[no-any-return]
        found: object = module
        for name in wanted.qualname.split("."):
            found = getattr(found, name)
        return found  # type: ignore[return-value]


class Patchy(Text):
    """patchy.patch with a unified diff of three lines of context."""

    name = "patchy"

    def one(self, wanted: Change) -> None:
        import patchy

        written = text_edit(self.item, wanted)
        before, after = (text.splitlines(keepends=True) for text in (written.before, written.after))
        diff = "".join(difflib.unified_diff(before, after)).partition("+++ \n")[2]
        target = self.function(wanted)
        patchy.patch(target, diff)
        self.undo.append(lambda: patchy.unpatch(target, diff))


class GetSource(Text):
    """inspect.getsource, str.replace, exec in the module's names, setattr on the owner."""

    name = "getsource"

    def one(self, wanted: Change) -> None:
        written = text_edit(self.item, wanted)
        module = import_module(wanted.module)
        source = textwrap.dedent(inspect.getsource(self.function(wanted)))
        if written.old not in source:
            raise ValueError(f"{written.old!r} is not in {wanted.qualname}")
        made: dict[str, object] = {}
        exec(source.replace(written.old, written.new), vars(module), made)
        *path, name = [part for part in wanted.qualname.split(".") if part not in ("fget", "fset", "fdel")]
        if wanted.inner:  # the function made before is what the module holds under the handle
            *path, name = wanted.handle.split(".")
        owner: object = module
        for part in path:
            owner = getattr(owner, part)
        if isinstance(owner, type) and name.startswith("__") and not name.endswith("__"):
            name = f"_{owner.__name__.lstrip('_')}{name}"
        before = vars(owner)[name]
        [(_, function)] = made.items()
        setattr(owner, name, function)
        self.undo.append(lambda: setattr(owner, name, before))


def worker(row: int, index: int, tool: str) -> None:
    """One input through one tool; prints the verdict as JSON."""
    item = next(known for known in ROWS if known.number == row).inputs[index]
    engine = {"patchwork": lambda: Patchwork(), "patchy": lambda: Patchy(item), "getsource": lambda: GetSource(item)}[tool]()
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        sys.path.insert(0, str(root))
        os.environ["PATCHWORK_CACHE_DIR"] = str(Path(folder) / "cache")
        verdict = run(item, engine, root)
        print(json.dumps([verdict.kind, str(verdict)]), flush=True)


def ask(row: int, index: int, tool: str, item: Input) -> tuple[str, str]:
    """Kind and words of a verdict; a worker that dies or hangs is wrong."""
    if tool != "patchwork" and item.not_for:
        return NOT_ASKED, item.not_for
    strict = ["-W", "error"] if tool == "patchwork" else ["-W", "ignore"]
    command = [sys.executable, *strict, str(Path(__file__).resolve()), "--worker", f"{row},{index},{tool}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
        kind, words = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return "wrong", f"still running after {TIMEOUT_SECONDS} s"
    except (IndexError, ValueError):
        return "wrong", f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return kind, words


def show(results: dict[tuple[int, int, str], tuple[str, str]], verbose: bool) -> dict[str, Counter[str]]:
    """Print the table by row; returns the totals over inputs."""
    totals: dict[str, Counter[str]] = {tool: Counter() for tool in TOOLS}
    by_row: dict[str, Counter[str]] = {tool: Counter() for tool in TOOLS}
    names = {"patchwork": "patchwork", "patchy": f"patchy {version('patchy')}", "getsource": "getsource+exec"}
    print(f"Python {sys.version.split()[0]}; per tool: right / loud / wrong of the row's inputs\n")
    print(f"{'row':<52}" + "".join(f"{names[tool]:>18}" for tool in TOOLS))
    for row in sorted(ROWS, key=lambda row: row.number):
        cells = []
        for tool in TOOLS:
            kinds = [kind for (number, _, of), (kind, _) in results.items() if number == row.number and of == tool]
            count = Counter(kinds)
            if not kinds:
                continue
            totals[tool].update(count)
            by_row[tool][max(kinds, key=ORDER.index)] += 1
            asked = len(kinds) - count[NOT_ASKED]
            cells.append(f"{count['right']} / {count['loud']} / {count['wrong']}" if asked else NOT_ASKED)
        if cells:
            print(f"{row.number:>2} {row.words:<49}" + "".join(f"{cell:>18}" for cell in cells))
    for what, counted in (("inputs", totals), ("rows, by their worst input", by_row)):
        print(f"\n{what:<52}" + "".join(f"{names[tool]:>18}" for tool in TOOLS))
        for kind in (*ORDER[1:], NOT_ASKED):
            print(f"   {kind:<49}" + "".join(f"{counted[tool][kind]:>18}" for tool in TOOLS))
    for (number, index, tool), (kind, words) in results.items():
        if kind in ("loud", "wrong") and (verbose or tool == "patchwork"):
            row = next(row for row in ROWS if row.number == number)
            print(f"\n{tool}: {row.id_of(row.inputs[index])}\n    {words}")
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=lambda text: {int(part) for part in text.split(",")}, help="such as 1,2,17; all without")
    parser.add_argument("--verbose", action="store_true", help="what each tool did where it was not right")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        row, index, tool = options.worker.split(",")
        worker(int(row), int(index), tool)
        return 0
    asked = [
        (row.number, index, tool, item)
        for row in ROWS
        if options.rows is None or row.number in options.rows
        for index, item in enumerate(row.inputs)
        if sys.version_info >= item.python
        for tool in TOOLS
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(lambda question: ask(*question), asked))
    results = {question[:3]: verdict for question, verdict in zip(asked, verdicts, strict=True)}
    totals = show(results, options.verbose)["patchwork"]
    met = totals["wrong"] == 0 and totals["loud"] <= MOST_LOUD
    print(f"\ngoal for patchwork (no wrong input, at most {MOST_LOUD} loud): {'met' if met else 'MISSED'}")
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
