"""Explains why a module cannot be imported: it is missing, or something that it needs fails.

The two must not be mixed up: a module that moved is drift, which a patch has to follow; a dependency that is missing is not.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from pathlib import Path
from types import TracebackType

from ..errors import BrokenDependency, PatchError, TargetMissing

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
# What importing somebody's module, or asking their finder for it, may raise when it does not end the process.
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)
_MACHINERY = ("<", os.path.dirname(importlib.__file__), str(Path(__file__).parents[2]) + os.sep)


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
    if not name:
        lines = str(root).strip().splitlines() or [""]
        return f"{type(root).__name__}: {lines[0]}", f"see the whole traceback: python -c 'import {module}'"
    if isinstance(root, ModuleNotFoundError) and top == name != own:
        return f"it needs {name}, which is not installed", f"pip install {_DISTRIBUTIONS.get(name, name)}"
    installed = importlib.metadata.packages_distributions().get(top, [top])[0]
    again = f"pip install --force-reinstall {installed}"
    if not isinstance(root, ModuleNotFoundError):
        return str(root), f"another release of {top} may fit, or this one is damaged: {again}"
    if top == own:
        return f"its own package lacks {name}", f"the package is there in part: {again}"
    return f"it needs {name}, which the installed {top} does not have", f"pip install --upgrade {installed}"


def _where_next(name: str) -> str:
    if "." in name:
        return "this release may have moved it: narrow the patch's `versions`"
    return f"pip install {_DISTRIBUTIONS.get(name, name)}"


def _raised_at(traceback: TracebackType | None) -> str:
    """The last line in a traceback that is neither the import system's nor ours; "" where there is none."""
    place = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(_MACHINERY):
            place = f"{file}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
