"""Why can a module not be imported: is it not there, or does something that it needs fail?

The two must not be mixed up: a module that moved is drift, which a patch has to follow; a dependency that is missing is not.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from . import errors
from .errors import BrokenDependency, PatchError, TargetMissing

# What to install, where that is not called as it is imported: the distribution of that name may be anybody's.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "fla": "flash-linear-attention",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
# What importing somebody's module may raise, when it does not end the process.
_FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)


@dataclass(frozen=True)
class Trial:
    """Whether a module can be imported here: `error` says why not, None where it can."""

    module: str
    error: PatchError | None

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        kind = None if self.error is None else type(self.error).__name__
        return {"module": self.module, "kind": kind, "error": None if self.error is None else str(self.error)}


def explain(error: BaseException, module: str) -> PatchError:
    """What an exception raised while importing `module` means.

    Returns:
        TargetMissing if the module itself, or a package around it, is not there; else BrokenDependency, naming what is missing
        and what to run next. `lib.corex` is not around `lib.core`: names are compared whole, part by part.
    """
    root = _root(error)
    if isinstance(root, ModuleNotFoundError) and root.name and f"{module}.".startswith(f"{root.name}."):
        return TargetMissing(f"there is no module {module}", nearest=str(root), hint=_where_next(root.name))
    what, hint = _dependency(root, module)
    return BrokenDependency(f"{module} cannot be imported: {what}", where=_raised_at(root.__traceback__), hint=hint)


def _root(error: BaseException) -> BaseException:
    """The failure behind a failure: lazy modules raise a RuntimeError, or a nameless ModuleNotFoundError, from the real one."""
    seen = {id(error)}
    while True:
        inner = error.__cause__
        if inner is None and not (error.__suppress_context__ or (isinstance(error, ImportError) and error.name)):
            inner = error.__context__
        if inner is None or id(inner) in seen:
            return error
        seen.add(id(inner))
        error = inner


def _dependency(root: BaseException, module: str) -> tuple[str, str]:
    """What `module` needs and does not get, and the next command."""
    name = (root.name or "") if isinstance(root, ImportError) else ""
    top, own = name.partition(".")[0], module.partition(".")[0]
    distribution = _DISTRIBUTIONS.get(top, top)
    if not name:
        lines = str(root).strip().splitlines() or [""]
        return f"{type(root).__name__}: {lines[0]}", f"see the whole traceback: python -c 'import {module}'"
    if not isinstance(root, ModuleNotFoundError):
        return str(root), f"another release of {top} may fit, or this one is damaged: pip install --force-reinstall {distribution}"
    if top == own:
        return f"its own package lacks {name}", f"{own} is installed in part: pip install --force-reinstall {_DISTRIBUTIONS.get(own, own)}"
    if "." in name:
        return f"it needs {name}, which the installed {top} does not have", f"pip install --upgrade {distribution}"
    return f"it needs {name}, which is not installed", f"pip install {distribution}"


def _where_next(name: str) -> str:
    if "." in name:
        return "this release may have moved it: narrow the patch's `versions`"
    return f"pip install {_DISTRIBUTIONS.get(name, name)}"


def _raised_at(traceback: TracebackType | None) -> str:
    """The last line of somebody's file in a traceback; "" where there is none."""
    place = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith("<frozen ") and file != importlib.__file__:
            place = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def try_imports(modules: Sequence[str]) -> list[Trial]:
    """Import modules in one process of its own, none in this one; the order is kept.

    One that ends that process is told so, and those after it were not tried.
    """
    if not modules:
        return []
    command = [sys.executable, "-c", "from patchwork.engine.importing import main; main()", *modules]
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
            except _FAILURES as error:
                found = explain(error, module)
                answer |= {"kind": type(found).__name__, "what": found.what, "where": found.where}
                answer |= {"nearest": found.nearest, "hint": found.hint}
            print(json.dumps(answer), file=answers, flush=True)
