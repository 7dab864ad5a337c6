"""Rows 7 to 15: who else holds the function, which of its definitions lives, what it keeps (defaults, kind, running frames)."""

from __future__ import annotations

from patchwork import parameter, required

from .row import Input, Refused, Row, change

_PLUS_ONE = change("f", "return x", "return x + 1")
_F = "def f(x):\n    return x\n"

ROW_7 = Row(
    7,
    "aliases made before",
    (
        Input(
            "from-import and table",
            _F,
            (_PLUS_ONE,),
            "user.g(1), user.table['k'](1), f(1)",
            (1, 1, 1),
            (2, 2, 2),
            others={"lib/user.py": 'from lib.core import f as g\n\ntable = {"k": g}\n'},
            load=("lib.user",),
        ),
        Input(
            "partial, default of another function and bound method",
            "import functools\n\nclass C:\n    def f(self, x):\n        return x\n\nbound = C().f\n"
            "part = functools.partial(C.f, None)\ndef call(x, g=C.f):\n    return g(None, x)\n",
            (change("C.f", "return x", "return x + 1"),),
            "bound(1), part(1), call(1)",
            (1, 1, 1),
            (2, 2, 2),
        ),
        Input(
            "method taken by a subclass and by another class",
            "class C:\n    def f(self):\n        return 1\n\nclass D(C):\n    g = C.f\n\nclass E:\n    f = C.f\n",
            (change("C.f", "return 1", "return 2"),),
            "D().f(), D().g(), E().f()",
            (1, 1, 1),
            (2, 2, 2),
        ),
        Input(
            "decorated function in a registry of the undecorated ones",
            """
            import functools

            plain = []

            def keep(f):
                plain.append(f)
                @functools.wraps(f)
                def wrapper(x):
                    return 10 * f(x)
                return wrapper

            @keep
            def f(x):
                return x
            """,
            (change("f", "return x", "return x + 1", handle="plain[0]"),),
            "f(1), plain[0](1), len(plain)",
            (10, 1, 1),
            (20, 2, 1),
        ),
    ),
)


def _foreign(words: str, code: str, use: str, stock: object, *told: str) -> Input:
    return Input(
        words,
        _F,
        (_PLUS_ONE,),
        use,
        stock,
        Refused("ForeignPatch", told),
        others={"other.py": code},
        load=("other",),
        live_only=True,
    )


ROW_8 = Row(
    8,
    "replaced by another library before",
    (
        _foreign(
            "lambda over the original",
            "from lib import core\n\n_orig = core.f\ncore.f = lambda x: _orig(x) * 2\n",
            "f(1)",
            2,
            "other",
            "other.py:4",
        ),
        _foreign(
            "wrapper that looks like the original",
            "import functools\nfrom lib import core\n\ndef twice(f):\n    @functools.wraps(f)\n    def w(x):\n"
            "        return f(x) * 2\n    return w\n\ncore.f = twice(core.f)\n",
            "f(1)",
            2,
            "other",
            "other.py:5",
        ),
        _foreign(
            "function of its own",
            "from lib import core\n\ndef f(x):\n    return x\n\ncore.f = f\n",
            "f(1), f.__module__",
            (1, "other"),
            "other",
            "other.py:3",
        ),
        _foreign(
            "object that can be called",
            "from lib import core\n\nclass Twice:\n    def __init__(self, f):\n        self.f = f\n    def __call__(self, x):\n"
            "        return 2 * self.f(x)\n\ncore.f = Twice(core.f)\n",
            "f(1), type(f).__name__",
            (2, "Twice"),
            "other.Twice",
        ),
    ),
)

ROW_9 = Row(
    9,
    "several definitions of the name",
    (
        Input(
            "except and else",
            "try:\n    import no_such_module\nexcept ImportError:\n    def f(x):\n        return x\nelse:\n"
            "    def f(x):\n        return -x\n",
            (change("f", "return x", "return x + 1"),),
            "f(1)",
            1,
            2,
            live_only=True,
        ),
        Input(
            "if and else, the anchor in both",
            "if True:\n    def f(x):\n        y = 1\n        return x\nelse:\n    def f(x):\n        y = 2\n        return x\n",
            (change("f", "return x", "return x + y"),),
            "f(1)",
            1,
            2,
        ),
        Input(
            "methods in a class, the second replaces the first",
            "class C:\n    def f(self):\n        return 1\n\n    def f(self):\n        return 2\n",
            (change("C.f", "return 2", "return 3", was="def f(self):\n    return 2\n"),),
            "C().f()",
            2,
            3,
            live_only=True,
        ),
        Input(
            "class twice",
            "import sys\nif sys.version_info < (3,):\n    class C:\n        def f(self):\n            return 0\nelse:\n"
            "    class C:\n        def f(self):\n            return 1\n",
            (change("C.f", "return 1", "return 2", was="def f(self):\n    return 1\n"),),
            "C().f()",
            1,
            2,
            live_only=True,
        ),
    ),
)

ROW_10 = Row(
    10,
    "overload stubs and registrations",
    (
        Input(
            "overloads of a function",
            """
            from typing import overload

            @overload
            def f(x: int) -> int: ...
            @overload
            def f(x: str) -> str: ...
            def f(x):
                return x
            """,
            (change("f", "return x", "return x + 1", was="def f(x):\n    return x\n"),),
            "f(1)",
            1,
            2,
        ),
        Input(
            "overloads of a method, through the module",
            """
            import typing as t

            class C:
                @t.overload
                def f(self, x: int) -> int:
                    "Stub that says return x."
                @t.overload
                def f(self, x: str) -> str: ...
                def f(self, x):
                    return x
            """,
            (change("C.f", "return x", "return x + 1", was="def f(self, x):\n    return x\n"),),
            "C().f(1)",
            1,
            2,
        ),
        Input(
            "registrations under one name",
            """
            import functools

            @functools.singledispatch
            def f(x):
                return 1

            @f.register
            def _(x: str):
                return 1

            @f.register
            def _(x: list):
                return 1
            """,
            (change("f", "return 1", "return 2", handle="f.registry[object]"),),
            "f(1), f('a'), f([])",
            (1, 1, 1),
            (2, 1, 1),
        ),
        Input(
            "last registration, by the name that they share",
            "import functools\n\n@functools.singledispatch\ndef f(x):\n    return 1\n\n@f.register\ndef _(x: str):\n"
            "    return 2\n\n@f.register\ndef _(x: list):\n    return 3\n",
            (change("_", "return 3", "return 4", was="@f.register\ndef _(x: list):\n    return 3\n"),),
            "f(1), f('a'), f([])",
            (1, 2, 3),
            (1, 2, 4),
            live_only=True,
        ),
    ),
)


def _added(words: str, source: str, default: str, old: str, new: str, use: str, stock: object, patched: object) -> Input:
    head = source[source.index("def f(") : source.index(":\n", source.index("def f("))] + ":"
    tail = f", *, y={default}):" if "*" not in head else f", y={default}):"
    edits = (parameter("y", default=default), required(old).replace(new))
    text = change("f", f"{head}\n    {old}", head.replace("):", tail) + f"\n    {new}", *edits)
    return Input(words, source, (text,), use, stock, patched)


ROW_11 = Row(
    11,
    "added parameter",
    (
        _added(
            "with a default",
            _F,
            "5",
            "return x",
            "return x + y",
            "f(1), str(inspect.signature(f))",
            (1, "(x)"),
            (6, "(x, *, y=5)"),
        ),
        _added(
            "default from the module, beside a keyword-only one",
            "K = 7\n\ndef f(x, *, a=1):\n    return x\n",
            "K",
            "return x",
            "return x + y",
            "f(1), f.__kwdefaults__",
            (1, {"a": 1}),
            (8, {"a": 1, "y": 7}),
        ),
        _added(
            "behind positional defaults",
            "def f(x, z=[]):\n    return x\n",
            "None",
            "return x",
            "return y or x",
            "f(1), f.__defaults__, str(inspect.signature(f))",
            (1, ([],), "(x, z=[])"),
            (1, ([],), "(x, z=[], *, y=None)"),
        ),
    ),
)

ROW_12 = Row(
    12,
    "state in a default",
    (
        Input(
            "list",
            "def f(x, acc=[]):\n    acc.append(x)\n    return acc\n",
            (change("f", "acc.append(x)", "acc.append(x * 10)"),),
            "f(2), f.__defaults__[0] is kept",
            ([1, 2], True),
            ([1, 20], True),
            before="f(1)",
            live_only=True,
        ),
        Input(
            "keyword-only cache",
            "def f(x, *, cache={}):\n    cache[x] = x\n    return cache\n",
            (change("f", "cache[x] = x", "cache[x] = -x"),),
            "f(2), f.__kwdefaults__['cache'] is kept",
            ({1: 1, 2: 2}, True),
            ({1: 1, 2: -2}, True),
            before="f(1)",
            live_only=True,
        ),
        Input(
            "sentinel that is compared by identity",
            "class C:\n    def f(self, x=object()):\n        return x is C.missing\n\nC.missing = C.f.__defaults__[0]\n",
            (change("C.f", "return x is C.missing", "return x is C.missing, 1"),),
            "C().f()",
            True,
            (True, 1),
        ),
    ),
)

ROW_13 = Row(
    13,
    "nothing of the signature is evaluated again",
    (
        Input(
            "default from the class's scope that is gone",
            "class C:\n    K = 3\n    def f(self, x=K):\n        return x\n    del K\n",
            (change("C.f", "return x", "return x + 1"),),
            "C().f()",
            3,
            4,
        ),
        Input(
            "annotations that cannot be evaluated",
            "from __future__ import annotations\n\ndef f(x: Nowhere = 1) -> AlsoNowhere:\n    return x\n",
            (_PLUS_ONE,),
            "f(), f.__annotations__",
            (1, {"x": "Nowhere", "return": "AlsoNowhere"}),
            (2, {"x": "Nowhere", "return": "AlsoNowhere"}),
        ),
        Input(
            "default and annotation that count",
            "seen = []\n\ndef f(x: seen.append('annotation') = seen.append('default') or 3):\n    return x\n",
            (_PLUS_ONE,),
            "f(), seen if sys.version_info < (3, 14) else ['default', 'annotation']",
            (3, ["default", "annotation"]),
            (4, ["default", "annotation"]),
        ),
        Input(
            "default that was rebound since",
            "LIMIT = 3\n\ndef f(x=LIMIT):\n    return x\n\nLIMIT = 100\n",
            (_PLUS_ONE,),
            "f()",
            3,
            4,
        ),
    ),
)

ROW_14 = Row(
    14,
    "anchor in an inner scope",
    (
        Input(
            "comprehension in a nested function",
            "def g(z):\n    return z\n\ndef f(x):\n    k = 2\n    def inner(y):\n"
            "        return [g(z) * k for z in y]\n    return inner(x)\n",
            (change("f", "g(z)", "(g(z) + 1)"),),
            "f([1, 2])",
            [2, 4],
            [4, 6],
        ),
        Input(
            "comprehension in a method that uses super()",
            "class A:\n    def f(self, x):\n        return x\n\nclass C(A):\n    def f(self, x):\n        y = super().f(x)\n"
            "        return {k: v for k, v in y}\n",
            (change("C.f", "for k, v in y", "for v, k in y", required("{k: v for k, v in y}").replace("{k: v for v, k in y}")),),
            "C().f([(1, 2)])",
            {1: 2},
            {2: 1},
        ),
        Input(
            "lambda that is the default of a nested function",
            "def f(x):\n    def inner(y, key=lambda z: -z):\n        return sorted(y, key=key)\n    return inner(x)\n",
            (change("f", "lambda z: -z", "lambda z: z"),),
            "f([1, 3, 2])",
            [3, 2, 1],
            [1, 2, 3],
        ),
        Input(
            "method of a class in the function",
            "def f(x):\n    class Local:\n        def __call__(self):\n            return self.__private()\n"
            "        def __private(self):\n            return x\n    return Local()()\n",
            (change("f", "return x", "return x + 1"),),
            "f(1)",
            1,
            2,
        ),
        Input(
            "generator expression over a walrus",
            "def f(x):\n    return any((last := y) > 1 for y in x) and last\n",
            (change("f", "(last := y) > 1", "(last := y) > 2"),),
            "f([1, 2, 3])",
            2,
            3,
        ),
    ),
)

_KINDS = """
    def gen():
        yield 1
        yield 1

    async def co():
        return 1

    async def agen():
        yield 1

    def rest(running):
        async def collect():
            return [item async for item in running]
        return asyncio.run(collect())

    def drain():
        return rest(agen())

    import asyncio
    """

ROW_15 = Row(
    15,
    "generators and coroutines",
    (
        Input(
            "generator, one of it running",
            _KINDS,
            (change("gen", "yield 1", "yield 2", required("yield 1", count=2).replace("yield 2"), places=(0, 1)),),
            "list(kept), list(gen()), inspect.isgeneratorfunction(gen)",
            ([1], [1, 1], True),
            ([1], [2, 2], True),
            before="(running := gen(), next(running))[0]",
            live_only=True,
        ),
        Input(
            "coroutine, one of it waiting",
            _KINDS,
            (change("co", "return 1", "return 2"),),
            "asyncio.run(kept), asyncio.run(co()), inspect.iscoroutinefunction(co)",
            (1, 1, True),
            (1, 2, True),
            before="co()",
            live_only=True,
        ),
        Input("async generator", _KINDS, (change("agen", "yield 1", "yield 2"),), "drain()", [1], [2]),
        Input(
            "async generator, one of it running",
            _KINDS,
            (change("agen", "yield 1", "yield 2\nyield 3"),),
            "rest(kept), drain()",
            ([1], [1]),
            ([1], [2, 3]),
            before="agen()",
            live_only=True,
        ),
    ),
)

ROWS = (ROW_7, ROW_8, ROW_9, ROW_10, ROW_11, ROW_12, ROW_13, ROW_14, ROW_15)
