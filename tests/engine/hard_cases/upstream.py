"""Rows 20 to 22, 24 and 25: upstream moved on, has no source, or does not have the name that a patch uses."""

from __future__ import annotations

import py_compile
import zipfile
from pathlib import Path

from patchwork import required

from .row import Input, Refused, Row, change

_G = "\n\ndef g(*args, **kwargs):\n    return args, sorted(kwargs.items())\n"
_MISSING = Refused("AnchorMissing")


def _formatted(words: str, now: str, was: str, old: str, new: str, stock: object, patched: object) -> Input:
    source = f"def f(a, b):\n{now}{_G}"
    edit = required(old).replace(new)
    return Input(words, source, (change("f", old, new, edit, was=f"def f(a, b):\n{was}"),), "f(1, 2)", stock, patched)


_PAIR = ((1, 2), [("k", 3)])

ROW_20 = Row(
    20,
    "formatted anew upstream",
    (
        _formatted(
            "spaces, line breaks, trailing comma and a comment",
            "    return g(\n        a,  # first\n        b,\n        k=3,\n    )\n",
            "    return g(a,b, k=3)\n",
            "g(a,b, k=3)",
            "g(b,a, k=3)",
            _PAIR,
            ((2, 1), [("k", 3)]),
        ),
        _formatted(
            "quotes and parentheses",
            '    return (g((a), "it"))\n',
            "    return g(a, 'it')\n",
            "g(a, 'it')",
            "g(b, 'it')",
            ((1, "it"), []),
            ((2, "it"), []),
        ),
        _formatted(
            "order of keywords",
            "    return g(b=b, a=a)\n",
            "    return g(a=a, b=b)\n",
            "g(a=a, b=b)",
            "g(a=b, b=a)",
            ((), [("a", 1), ("b", 2)]),
            ((), [("a", 2), ("b", 1)]),
        ),
        _formatted(
            "joined strings, number spelling and a backslash",
            "    return g(0xFF, 'a' \\\n        'b')\n",
            "    return g(255, 'ab')\n",
            "g(255, 'ab')",
            "g(256, 'ab')",
            ((255, "ab"), []),
            ((256, "ab"), []),
        ),
        _formatted(
            "other spelling is no formatting",
            "    return not a in (b,)\n",
            "    return a not in (b,)\n",
            "a not in (b,)",
            "a not in (b, 1)",
            True,
            _MISSING,
        ),
        _formatted(
            "swapped operands are no formatting",
            "    return g(b == a)\n",
            "    return g(a == b)\n",
            "a == b",
            "a is b",
            ((False,), []),
            _MISSING,
        ),
    ),
)

ROW_21 = Row(
    21,
    "local renamed upstream",
    (
        Input(
            "captured and used again",
            "def f(x):\n    outputs_logits = x * 2\n    return outputs_logits\n",
            (
                change(
                    "f",
                    "return logits",
                    "logits = logits + 1\nreturn logits",
                    required("$L = x * 2\nreturn $L").replace("$L = x * 2\n$L = $L + 1\nreturn $L"),
                    was="def f(x):\n    logits = x * 2\n    return logits\n",
                ),
            ),
            "f(1)",
            2,
            3,
        ),
        Input(
            "attribute and keyword renamed with it",
            "class C:\n    w = 2\n    def f(self, x):\n        return dict(weight=x * self.w)\n",
            (
                change(
                    "C.f",
                    "return dict(bias=x * self.v)",
                    "return dict(bias=x * self.v + 1)",
                    required("dict($K=x * self.$A)").replace("dict($K=x * self.$A + 1)"),
                    was="def f(self, x):\n    return dict(bias=x * self.v)\n",
                ),
            ),
            "C().f(1)",
            {"weight": 2},
            {"weight": 3},
        ),
        Input(
            "bound again between capture and use",
            "def f(x):\n    loss = x * 2\n    loss = loss - 1\n    return loss\n",
            (
                change(
                    "f",
                    "return out",
                    "return out + 1",
                    required("$L = x * 2\n$$$REST\nreturn $_R").replace("$L = x * 2\n$$$REST\nreturn $L + 1"),
                    was="def f(x):\n    out = x * 2\n    return out\n",
                ),
            ),
            "f(1)",
            1,
            Refused("CaptureRebound", ("bound again",)),
        ),
    ),
)

_NATIVE = "def f(x, y=0):\n    return g(x, k=1)\n\ndef g(x, k=0):\n    return x + k\n"

ROW_22 = Row(
    22,
    "upstream has the patched form",
    (
        Input(
            "replacement that begins like its anchor",
            "def f(x):\n    y = x\n    return y + 1\n",
            (change("f", "return y", "return y + 1", was="def f(x):\n    y = x\n    return y\n"),),
            "f(1)",
            2,
            2,
        ),
        Input(
            "argument that is there",
            _NATIVE,
            (
                change(
                    "f", "g(x)", "g(x, k=1)", required("g($$$A)").set_argument("k", "1"), was="def f(x, y=0):\n    return g(x)\n"
                ),
            ),
            "f(1)",
            2,
            2,
        ),
        Input(
            "statements that are there",
            "def f(x):\n    if x > 0:\n        x *= 2\n    return x\n",
            (
                change(
                    "f",
                    "return x",
                    "if x > 0:\n    x *= 2\nreturn x",
                    required("return x").insert_before("if x > 0:\n    x *= 2"),
                    was="def f(x):\n    return x\n",
                ),
            ),
            "f(-1), f(1)",
            (-1, 2),
            (-1, 2),
        ),
        Input(
            "part of it only is an error",
            "def f(x):\n    y = h(x)\n    return y + 1\n\ndef h(x):\n    return x\n",
            (
                change(
                    "f",
                    "y = h(x)",
                    "y = h(x + 1)",
                    required("y = h(x)").replace("y = h(x + 1)"),
                    required("return y").replace("return y + 1"),
                    was="def f(x):\n    y = h(x)\n    return y\n",
                ),
            ),
            "f(1)",
            2,
            Refused("PartlyNative"),
            not_for="two edits of which upstream made one: a text cannot say that they belong together",
        ),
    ),
)


def _compile_only(root: Path) -> None:
    core = root / "lib" / "core.py"
    py_compile.compile(str(core), cfile=str(core.with_suffix(".pyc")), doraise=True)
    core.unlink()


def _zip(root: Path) -> None:
    """`lib` into an archive, as the package `zipped`."""
    with zipfile.ZipFile(root / "archive.zip", "w") as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, path.relative_to(root).as_posix().replace("lib/", "zipped/"))


_LOADER = """
    import os, sys

    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "archive.zip"))
    """
_UNAVAILABLE = Refused("SourceUnavailable", ("no Python source",))
_NO_DEFINITION = Refused("TargetMissing", ("defines no function",))

ROW_24 = Row(
    24,
    "no source",
    (
        Input(
            "module in a zip file",
            "def f(x):\n    return x\n",
            (change("zipped.core:f", "return x", "return x + 1", was="def f(x):\n    return x\n"),),
            "core.f(1)",
            1,
            2,
            others={"other.py": _LOADER},
            load=("zipped.core",),
            setup=_zip,
            module="other",
            live_only=True,
        ),
        Input(
            "compiled only",
            "def f(x):\n    return x\n",
            (change("f", "return x", "return x + 1"),),
            "f(1)",
            1,
            _UNAVAILABLE,
            setup=_compile_only,
        ),
        Input(
            "made by exec",
            'exec("def f(x):\\n    return x")\n',
            (change("f", "return x", "return x + 1", was="def f(x):\n    return x\n"),),
            "f(1)",
            1,
            _NO_DEFINITION,
        ),
        Input(
            "C function",
            "from math import floor as f\n",
            (change("f", "return x", "return x + 1", was="def f(x):\n    return x\n"),),
            "f(1)",
            1,
            _NO_DEFINITION,
        ),
        Input(
            "C function by its own module",
            "from math import floor as f\n",
            (change("math:floor", "return x", "return x + 1", was="def floor(x):\n    return x\n"),),
            "f(1)",
            1,
            _UNAVAILABLE,
        ),
        Input(
            "lambda",
            "f = lambda x: x\n",
            (change("f", "lambda x: x", "lambda x: x + 1", required("x").replace("x + 1"), was="f = lambda x: x\n"),),
            "f(1)",
            1,
            _NO_DEFINITION,
            also=(2,),
        ),
        Input(
            "method that a dataclass makes",
            "from dataclasses import dataclass\n\n@dataclass\nclass C:\n    x: int\n",
            (
                change(
                    "C.__init__",
                    "self.x=x",
                    "self.x=x + 1",
                    required("self.x = x").replace("self.x = x + 1"),
                    was="def __init__(self, x):\n    self.x=x\n",
                ),
            ),
            "C(1).x",
            1,
            _NO_DEFINITION,
        ),
    ),
)


def _name(words: str, source: str, new: str, use: str, stock: object, patched: object, target: str = "f") -> Input:
    return Input(words, source, (change(target, "return x", new),), use, stock, patched)


ROW_25 = Row(
    25,
    "name that the module lacks",
    (
        _name("global", "def f(x):\n    return x\n", "return torch.relu(x)", "f(1)", 1, Refused("MissingName", ("torch",))),
        _name(
            "in a lambda in a branch that is seldom taken",
            "def f(x):\n    return x\n",
            "return x if x else (lambda: np.zeros(0))()",
            "f(1)",
            1,
            Refused("MissingName", ("np",)),
        ),
        _name(
            "name of the class, which methods do not see",
            "class C:\n    K = 3\n    def f(self, x):\n        return x\n",
            "return x + K",
            "C().f(1)",
            1,
            Refused("MissingName", ("K",)),
            "C.f",
        ),
        _name(
            "local of another function",
            "def g():\n    factor = 2\n    return factor\n\ndef f(x):\n    return x\n",
            "return x * factor",
            "f(1)",
            1,
            Refused("MissingName", ("factor",)),
        ),
        _name(
            "all sorts that the module does have",
            "import os.path as p\nfrom math import *\n\ndef f(x):\n    return x\n\nfor i in range(2):\n    pass\n",
            "return len([p, sqrt, i, __name__, f, x, len])",
            "f(1)",
            1,
            7,
        ),
    ),
)

ROWS = (ROW_20, ROW_21, ROW_22, ROW_24, ROW_25)
