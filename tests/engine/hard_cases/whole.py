"""Rows 27 to 30: several patches and calls as a whole, threads and hooks, and what is installed."""

from __future__ import annotations

import importlib
import linecache
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import wrapt

from .row import Change, Engine, Input, Refused, Row, change

_THREE = "def f(x):\n    return x\n\ndef g(x):\n    return x\n\ndef h(x):\n    return x\n"


def _third(target: str, new: str = "return x + 1") -> Change:
    return change(target, "return x", new)


_SAME = "f(1), g(1), h(1), f.__code__ is kept[0], sys.meta_path == kept[1], inspect.getsource(g)"
_BEFORE = "f.__code__, list(sys.meta_path)"
_STOCK = (1, 1, 1, True, True, "def g(x):\n    return x\n")

ROW_27 = Row(
    27,
    "step 2 of 3 fails",
    (
        Input(
            "anchor missing",
            _THREE,
            (_third("f"), change("g", "return gone", "return 1", was="def g(x):\n    return gone\n"), _third("h")),
            _SAME,
            _STOCK,
            Refused("AnchorMissing", ("return gone",)),
            before=_BEFORE,
            live_only=True,
        ),
        Input(
            "target missing in another module",
            _THREE,
            (_third("f"), change("lib.user:gone", "return x", "return 1", was="def gone(x):\n    return x\n"), _third("h")),
            _SAME,
            _STOCK,
            Refused("TargetMissing", ("gone",)),
            others={"lib/user.py": "from lib.core import f\n"},
            load=("lib.user",),
            before=_BEFORE,
            live_only=True,
        ),
        Input(
            "name missing",
            _THREE,
            (_third("f"), _third("g", "return nowhere"), _third("h")),
            _SAME,
            _STOCK,
            Refused("MissingName", ("nowhere",)),
            before=_BEFORE,
            live_only=True,
        ),
        Input(
            "two of them change the same code",
            _THREE,
            (_third("f"), _third("f", "return x + 2"), _third("h")),
            _SAME,
            _STOCK,
            Refused("PatchConflict", ("own.0", "own.1")),
            before=_BEFORE,
            live_only=True,
        ),
    ),
)


def _calls(*names: str) -> Callable[[Engine, tuple[Change, ...]], None]:
    """`apply` and `revert`, called in this order, whatever one raises; each of two in a row must report the same."""

    def act(engine: Engine, changes: tuple[Change, ...]) -> None:
        errors: list[Exception] = []
        last: tuple[str, object] = ("", None)
        for name in names:
            if name == "clearcache":
                linecache.clearcache()
                continue
            try:
                report = getattr(engine, name)(changes)
                if last[0] == name and last[1] != report:
                    errors.append(AssertionError(f"{name}: first {last[1]}, then {report}"))
                last = (name, report)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    return act


ROW_28 = Row(
    28,
    "apply and revert twice each",
    (
        Input(
            "apply twice",
            _THREE,
            (_third("f"), _third("g")),
            "f(1), g(1), h(1)",
            (1, 1, 1),
            (2, 2, 1),
            act=_calls("apply", "apply"),
        ),
        Input(
            "and revert twice",
            _THREE,
            (_third("f"), _third("g")),
            "f(1), g(1), h(1), f.__defaults__",
            (1, 1, 1, None),
            (1, 1, 1, None),
            act=_calls("apply", "apply", "revert", "revert"),
            live_only=True,
        ),
        Input(
            "and apply again, with a memo above it",
            "import functools\n\n@functools.lru_cache\ndef f(x):\n    return x\n",
            (change("f", "return x", "return x + 1", handle="f.__wrapped__"),),
            "f(1)",
            1,
            2,
            before="f(1)",
            act=_calls("apply", "apply", "revert", "revert", "clearcache", "apply", "apply"),
            live_only=True,
        ),
    ),
)

_SLOW = "def f(x):\n    return x\n\nimport time\nfor _ in range(20):\n    time.sleep(0.01)\n"


def _in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def _joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(300)  # only a deadlock takes as long, however loaded the machine
    if any(thread.is_alive() for thread in threads):
        raise AssertionError("deadlock")


def _while_imported(engine: Engine, changes: tuple[Change, ...]) -> None:
    importer = _in_thread(lambda: importlib.import_module("lib.late"))
    while "lib.late" not in sys.modules:
        time.sleep(0.001)
    engine.apply(changes)
    _joined([importer])


def _while_two_import(engine: Engine, changes: tuple[Change, ...]) -> None:
    names = ["lib.late", "lib.later"]
    errors: list[Exception] = []

    def apply() -> None:
        try:
            engine.apply(changes)
        except Exception as error:
            errors.append(error)

    _joined(
        [
            _in_thread(lambda: [importlib.import_module(name) for name in names]),
            _in_thread(lambda: [importlib.import_module(name) for name in reversed(names)]),
            _in_thread(apply),
        ]
    )
    if errors:
        raise errors[0]


def _in_hook(engine: Engine, changes: tuple[Change, ...]) -> None:
    """Apply from another library's import hook, which itself imports the target."""
    errors: list[Exception] = []

    def hook(module: object) -> None:
        importlib.import_module("lib.later")
        try:
            engine.apply(changes)
        except Exception as error:
            errors.append(error)

    wrapt.register_post_import_hook(hook, "lib.late")
    importlib.import_module("lib.late")
    if errors:
        raise errors[0]


_LATE = change("lib.late:f", "return x", "return x + 1", was="def f(x):\n    return x\n")
_LATER = change("lib.later:f", "return x", "return x + 1", was="def f(x):\n    return x\n")
_AT_ONCE = {"lib/late.py": _SLOW, "lib/later.py": _SLOW}

ROW_29 = Row(
    29,
    "imports at the same time",
    (
        Input(
            "another thread imports the target",
            _THREE,
            (_LATE,),
            "importlib.import_module('lib.late').f(1)",
            1,
            2,
            others=_AT_ONCE,
            act=_while_imported,
        ),
        Input(
            "two threads import two targets in different orders",
            _THREE,
            (_LATE, _LATER),
            "[importlib.import_module(name).f(1) for name in ('lib.late', 'lib.later')]",
            [1, 1],
            [2, 2],
            others=_AT_ONCE,
            act=_while_two_import,
        ),
        Input(
            "inside an import hook",
            _THREE,
            (_LATE, _LATER),
            "[importlib.import_module(name).f(1) for name in ('lib.late', 'lib.later')]",
            [1, 1],
            [2, 2],
            others=_AT_ONCE,
            act=_in_hook,
        ),
    ),
)


def _installed(root: Path, folder: str, version: str, *, module: bool = True, own: str | None = None) -> Path:
    """A site folder with the distribution `mamba-ssm`; `module`: with its package; `own`: the package's `__version__`."""
    site = root / folder
    info = site / f"mamba_ssm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mamba-ssm\nVersion: {version}\n")
    if module:
        _package(site, own)
    return site


def _package(folder: Path, version: str | None) -> None:
    (folder / "mamba_ssm").mkdir(parents=True)
    (folder / "mamba_ssm" / "__init__.py").write_text("" if version is None else f'__version__ = "{version}"\n')


def _editable(root: Path) -> None:
    site = _installed(root, "site", "2.0", module=False)
    _package(root / "checkout", None)
    (site / "editable.pth").write_text(f"{root / 'checkout'}\n")
    url = (root / "checkout").as_uri()
    (site / "mamba_ssm-2.0.dist-info" / "direct_url.json").write_text(f'{{"url": "{url}", "dir_info": {{"editable": true}}}}')


def _zipped(root: Path) -> None:
    with zipfile.ZipFile(root / "mamba.zip", "w") as archive:
        archive.writestr("mamba_ssm/__init__.py", "")
        archive.writestr("mamba_ssm-2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mamba-ssm\nVersion: 2.0\n")


def _two(root: Path) -> None:
    _installed(root, "first", "1.0")
    _installed(root, "second", "2.0")


def _mismatch(root: Path) -> None:
    """The package comes from a folder without metadata; the metadata found is another copy's."""
    _package(root / "checkout", "3.0")
    _installed(root, "site", "2.0")


def _nameless(root: Path) -> None:
    _package(root / "checkout", None)
    _installed(root, "site", "2.0")


def _said(
    words: str, setup: Callable[[Path], None], folders: tuple[str, ...], version: object, file: str, warnings: str
) -> Input:
    """`file`: where the module lies below the root; `warnings`: an expression over what is said of it."""
    # The root is the folder above the package `lib`.
    root = "__import__('pathlib').Path(core.__file__).parents[1]"
    paths = ", ".join(f"str(root / {folder!r})" for folder in folders)
    use = (
        f"(lambda root: (lambda said: (said[0], said[1] == str(root / {file!r}), {warnings}))"
        f"(doctor('mamba_ssm', {paths})))({root})"
    )
    seen = (version, True, True)
    return Input(words, "", (), use, seen, seen, setup=setup, not_for="there is no doctor to ask")


ROW_30 = Row(
    30,
    "doctor names the file that is used",
    (
        _said("editable install", _editable, ("site",), "2.0", "checkout/mamba_ssm/__init__.py", "said[2] == []"),
        _said("zip file", _zipped, ("mamba.zip",), "2.0", "mamba.zip/mamba_ssm/__init__.py", "said[2] == []"),
        _said(
            "two versions on the path",
            _two,
            ("first", "second"),
            "1.0",
            "first/mamba_ssm/__init__.py",
            "len(said[2]) == 1 and str(root / 'second') in said[2][0]",
        ),
        _said(
            "metadata of another copy",
            _mismatch,
            ("checkout", "site"),
            "3.0",
            "checkout/mamba_ssm/__init__.py",
            "len(said[2]) == 1 and str(root / 'site') in said[2][0]",
        ),
        _said(
            "metadata of another copy and no version of its own",
            _nameless,
            ("checkout", "site"),
            "unknown",
            "checkout/mamba_ssm/__init__.py",
            "len(said[2]) == 1 and str(root / 'site') in said[2][0]",
        ),
    ),
)

ROWS = (ROW_27, ROW_28, ROW_29, ROW_30)
