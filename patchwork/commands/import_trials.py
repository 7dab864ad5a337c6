"""Tries to import modules in a process of its own, so that nothing is imported in this one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine import errors
from ..engine.environment.import_errors import FAILURES, explain
from ..engine.errors import BrokenDependency, PatchError


@dataclass(frozen=True)
class Trial:
    """Whether a module can be imported here: `error` says why not, None where it can."""

    module: str
    error: PatchError | None

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        kind = None if self.error is None else type(self.error).__name__
        return {"module": self.module, "kind": kind, "error": None if self.error is None else str(self.error)}


def try_imports(modules: Sequence[str]) -> list[Trial]:
    """Import modules in one process of its own, none in this one; the order is kept.

    One that ends that process is told so, and those after it were not tried.
    """
    if not modules:
        return []
    command = [sys.executable, "-c", "from patchwork.commands.import_trials import main; main()", *modules]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    trials = [_read(line) for line in done.stdout.splitlines()]
    for module in modules[len(trials) : len(trials) + 1]:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        ended = f"{module} cannot be imported: doing so ends Python with exit code {done.returncode}"
        trials.append(Trial(module, BrokenDependency(ended, nearest=last, hint=f"see for yourself: python -c 'import {module}'")))
    for module in modules[len(trials) :]:
        trials.append(Trial(module, BrokenDependency(f"{module} was not tried: the one before ended Python")))
    return trials


def _read(line: str) -> Trial:
    said = json.loads(line)
    if said["kind"] is None:
        return Trial(said["module"], None)
    kind: type[PatchError] = getattr(errors, said["kind"])
    return Trial(said["module"], kind(said["what"], where=said["where"], nearest=said["nearest"], hint=said["hint"]))


def main() -> None:
    """The other process: import the modules named as arguments, and say of each, as a line of JSON, what came of it."""
    # Whatever the modules print themselves goes where errors go.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for module in sys.argv[1:]:
            answer: dict[str, str | None] = {"module": module, "kind": None}
            try:
                importlib.import_module(module)
            except FAILURES as error:
                found = explain(error, module)
                answer |= {"kind": type(found).__name__, "what": found.what, "where": found.where}
                answer |= {"nearest": found.nearest, "hint": found.hint}
            print(json.dumps(answer), file=answers, flush=True)
