"""Rows 1 to 6: what a function stands in. Its class, its closure, its decorators, its descriptor."""

from __future__ import annotations

from patchwork import required

from .row import Input, Row, change

_SUPER = """
    class A:
        def f(self):
            return 1

        @classmethod
        def name(cls):
            return "A"

        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.tag = 1

    class B(A):
        def f(self):
            x = super().f()
            return x

        @classmethod
        def name(cls):
            parts = [(lambda: super(__class__, cls).name())() for _ in range(2)]
            return "B"

        class C(A):
            def f(self):
                x = 10 * super().f()
                return x
    """

ROW_1 = Row(
    1,
    "zero-argument super()",
    (
        Input(
            "in a method",
            _SUPER,
            (change("B.f", "return x", "return x + 1"),),
            "B().f(), B.f.__closure__[0].cell_contents is B",
            (1, True),
            (2, True),
        ),
        Input(
            "__class__ named in a lambda of a class method",
            _SUPER,
            (change("B.name", 'return "B"', 'return "B" + parts[1]'),),
            "B.name(), B().name()",
            ("B", "B"),
            ("BA", "BA"),
        ),
        Input(
            "in a class inside a class",
            _SUPER,
            (change("B.C.f", "return x", "return x + 1"),),
            "B.C().f(), B().f()",
            (10, 1),
            (11, 1),
        ),
        Input(
            "in __init_subclass__, which is a class method by itself",
            _SUPER,
            (change("A.__init_subclass__", "cls.tag = 1", "cls.tag = 2", handle="A.__init_subclass__"),),
            "type('D', (A,), {}).tag",
            1,
            2,
        ),
    ),
)

ROW_2 = Row(
    2,
    "replacement that adds super()",
    (
        Input(
            "zero-argument",
            "class A:\n    def f(self):\n        return 1\n\nclass B(A):\n    def f(self):\n        return 10\n\nalias = B.f\n",
            (change("B.f", "return 10", "return super().f() + 10"),),
            "B().f(), alias(B())",
            (10, 10),
            (11, 11),
        ),
        Input(
            "with both arguments",
            "class A:\n    def f(self):\n        return 1\n\nclass B(A):\n    def f(self):\n        return 10\n\nalias = B.f\n",
            (change("B.f", "return 10", "return super(B, self).f() + 10"),),
            "B().f(), alias(B())",
            (10, 10),
            (11, 11),
        ),
        Input(
            "in a comprehension and a lambda, by __class__",
            "class A:\n    def f(self):\n        return 1\n\nclass B(A):\n    def f(self):\n        return [10]\n\nalias = B.f\n",
            (change("B.f", "return [10]", "return [(lambda: super(__class__, self).f())() for _ in range(2)]"),),
            "B().f(), alias(B())",
            ([10], [10]),
            ([1, 1], [1, 1]),
        ),
        Input(
            "below a docstring, in a class method of a class that a decorator made anew",
            """
            from dataclasses import dataclass

            class A:
                @classmethod
                def f(cls):
                    return 1

            @dataclass(slots=True)
            class B(A):
                x: int = 0

                @classmethod
                def f(cls):
                    "Doc."
                    return 10

            class D(B):
                pass
            """,
            (change("B.f", "return 10", "return super().f() + 10"),),
            "B.f(), D.f(), B.f.__doc__",
            (10, 10, "Doc."),
            (11, 11, "Doc."),
        ),
    ),
)

ROW_3 = Row(
    3,
    "patch drops the last use of a free variable",
    (
        Input(
            "function made before by a maker",
            "def make(k):\n    def add(x):\n        return x + k\n    return add\n\nadd = make(10)\n",
            (change("make", "return x + k", "return x", handle="add", inner="make.add"),),
            "add(1), make(5)(1)",
            (11, 6),
            (1, 1),
            not_for="changes one function made before, or those made later, not both",
        ),
        Input(
            "wrapper of a decorator that was used before",
            """
            def scaled(k):
                def decorate(f):
                    def wrapper(x):
                        return f(x) * k
                    return wrapper
                return decorate

            @scaled(3)
            def f(x):
                return x
            """,
            (change("scaled", "return f(x) * k", "return f(x)", handle="f", inner="scaled.wrapper"),),
            "f(2)",
            6,
            2,
        ),
        Input(
            "last super() of a method",
            "class C:\n    def f(self):\n        return super().__repr__()[:1]\n",
            (change("C.f", "return super().__repr__()[:1]", "return 5"),),
            "C().f()",
            "<",
            5,
        ),
        Input(
            "counter that keeps its count",
            """
            def make():
                count, step = 0, 2
                def tick():
                    nonlocal count
                    count += step
                    return count
                return tick

            tick = make()
            """,
            (change("make", "count += step", "count += 1", handle="tick", inner="make.tick"),),
            "tick()",
            4,
            3,
            before="tick()",
            live_only=True,
        ),
        Input(
            "method of a class that a function made",
            """
            def make(k):
                class Base:
                    def f(self):
                        return 1
                class C(Base):
                    def f(self):
                        return super().f() + k
                return C

            C = make(10)
            item = C()
            """,
            (change("make", "return super().f() + k", "return super().f()", handle="C.f", inner="make.C.f"),),
            "item.f(), C.f.__qualname__",
            (11, "make.<locals>.C.f"),
            (1, "make.<locals>.C.f"),
        ),
    ),
)

_PRIVATE = """
    class _C:
        __v = 3

        def __f(self):
            return self.__v

        def g(self):
            return self.__f()

        def h(self, **__k):
            def inner(__x):
                return __x + self.__v
            return inner(1)

    class Other:
        _C__v = 100
        _Other__v = 200
    """

ROW_4 = Row(
    4,
    "names private to a class",
    (
        Input(
            "read in a private method of a class with an underscore",
            _PRIVATE,
            (change("_C.__f", "return self.__v", "return self.__v * 2", handle="_C._C__f"),),
            "_C().g(), _C._C__f(Other())",
            (3, 100),
            (6, 200),
        ),
        Input(
            "set by the inserted code",
            _PRIVATE,
            (
                change(
                    "_C.g",
                    "return self.__f()",
                    "self.__v = 5\nreturn self.__f()",
                    required("return self.__f()").insert_before("self.__v = 5"),
                ),
            ),
            "(lambda c: (c.g(), vars(c)))(_C())",
            (3, {}),
            (5, {"_C__v": 5}),
        ),
        Input(
            "in a function inside the method, as parameter and as local",
            _PRIVATE,
            (change("_C.h", "return __x + self.__v", "__y = __x\nreturn __y + self.__v + 1"),),
            "_C().h(), _C.h.__code__.co_varnames",
            (4, ("self", "_C__k", "inner")),
            (5, ("self", "_C__k", "inner")),
        ),
    ),
)

_DECORATED = """
    import functools

    calls = []

    def register(f):
        calls.append(f.__name__)
        return f

    def double(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return 2 * f(*args, **kwargs)
        return wrapper

    class Counted:
        def __init__(self, f):
            functools.update_wrapper(self, f)
            self.count = 0

        def __call__(self, *args):
            self.count += 1
            return self.__wrapped__(*args)

    @register
    @double
    def f(x):
        return x

    @Counted
    def g(x):
        return x

    @contextlib.contextmanager
    def h(x):
        yield x
    """

_KEPT = """
    import enum

    registry = {}

    def register(name):
        def decorate(f):
            registry[name] = f
        return decorate

    class Slotted:
        __slots__ = ("f",)

        def __init__(self, f):
            self.f = f

        def __call__(self, x):
            return 10 * self.f(x)

    @register("k")
    def f(x):
        return x

    @Slotted
    def g(x):
        return x
    """

ROW_5 = Row(
    5,
    "decorators run once and stay",
    (
        Input(
            "one that registers over one that wraps",
            _DECORATED.replace("import functools", "import contextlib, functools"),
            (change("f", "return x", "return x + 1", handle="f.__wrapped__"),),
            "f(1), calls, f.__name__",
            (2, ["f"], "f"),
            (4, ["f"], "f"),
        ),
        Input(
            "class with state",
            _DECORATED.replace("import functools", "import contextlib, functools"),
            (change("g", "return x", "return x + 1", handle="g.__wrapped__"),),
            "g(1), type(g) is Counted, g.count",
            (1, True, 2),
            (2, True, 2),
            before="g(1)",
            live_only=True,
        ),
        Input(
            "context manager",
            _DECORATED.replace("import functools", "import contextlib, functools"),
            (change("h", "yield x", "yield x + 1", handle="h.__wrapped__"),),
            "h(1).__enter__(), calls",
            (1, ["f"]),
            (2, ["f"]),
        ),
        Input(
            "one of another package, behind an argument",
            "from other.deco import times\n\n@times(2)\ndef f(x):\n    return x\n",
            (change("f", "return x", "return x + 1", handle="f.__closure__[0].cell_contents"),),
            "f(1), deco.made",
            (2, 1),
            (4, 1),
            others={
                "other/deco.py": "made = 0\n\ndef times(n):\n    global made\n    made += 1\n"
                "    return lambda f: lambda x: n * f(x)\n"
            },
            load=("other.deco",),
            live_only=True,
        ),
        Input(
            "one that keeps it in a slot",
            _KEPT,
            (change("g", "return x", "return x + 1", handle="g.f"),),
            "g(1), type(g) is Slotted, list(registry)",
            (10, True, ["k"]),
            (20, True, ["k"]),
        ),
        Input(
            "one that registers it and leaves nothing behind",
            _KEPT,
            (change("f", "return x", "return x + 1", handle="registry['k']"),),
            "registry['k'](1), f",
            (1, None),
            (2, None),
        ),
    ),
)

_KINDS = """
    import functools

    class Meta(type):
        @property
        def q(cls):
            raise RuntimeError("called")

    class C(metaclass=Meta):
        @staticmethod
        def s(x):
            return x

        @classmethod
        def c(cls):
            return 1

        @property
        def p(self):
            return self.raw

        @p.setter
        def p(self, value):
            self.raw = value

        @p.deleter
        def p(self):
            self.raw = 0

        @functools.cached_property
        def cached(self):
            return 1

        def power(self, n):
            return n

        square = functools.partialmethod(power, 2)

        @functools.singledispatchmethod
        def d(self, x):
            return 1

        @d.register
        def _(self, x: str):
            return 10

        def q(self):
            return 1

    @functools.lru_cache
    def memo(x):
        return x

    @functools.singledispatch
    def single(x):
        return 1

    @single.register
    def _(x: str):
        return 10

    def parts():
        c = C()
        c.p = 5
        seen = [c.p]
        del c.p
        return [*seen, c.p]
    """


def _kind(words: str, target: str, old: str, new: str, use: str, stock: object, patched: object, **more: object) -> Input:
    handle = str(more.pop("handle", ""))
    return Input(words, _KINDS, (change(target, old, new, handle=handle),), use, stock, patched, **more)  # type: ignore[arg-type]


ROW_6 = Row(
    6,
    "kinds of descriptors",
    (
        _kind("static method", "C.s", "return x", "return x + 1", "C.s(1), C().s(1)", (1, 1), (2, 2)),
        _kind("class method", "C.c", "return 1", "return cls.__name__", "C.c(), C().c()", (1, 1), ("C", "C")),
        _kind("getter", "C.p.fget", "return self.raw", "return self.raw + 1", "parts()", [5, 0], [6, 1]),
        _kind("setter", "C.p.fset", "self.raw = value", "self.raw = value * 10", "parts()", [5, 0], [50, 0]),
        _kind("deleter", "C.p.fdel", "self.raw = 0", "self.raw = 7", "parts()", [5, 0], [5, 7]),
        _kind("cached property", "C.cached", "return 1", "return 2", "C().cached", 1, 2, handle="C.cached.func"),
        _kind(
            "memo",
            "memo",
            "return x",
            "return x + 1",
            "memo(1)",
            1,
            2,
            handle="memo.__wrapped__",
            before="memo(1)",
            live_only=True,
        ),
        _kind("partial method", "C.power", "return n", "return n + 1", "C().square(), C().power(5)", (2, 5), (3, 6)),
        _kind(
            "single dispatch",
            "single",
            "return 1",
            "return 2",
            "single(1), single('a')",
            (1, 10),
            (2, 10),
            handle="single.__wrapped__",
        ),
        _kind(
            "single dispatch of methods",
            "C.d",
            "return 1",
            "return 2",
            "C().d(1), C().d('a')",
            (1, 10),
            (2, 10),
            handle="C.__dict__['d'].func",
        ),
        Input(
            "property of an enumeration",
            "import enum\n\nclass E(enum.Enum):\n    A = 1\n\n    @enum.property\n    def p(self):\n        return 1\n",
            (change("E.p", "return 1", "return 2", handle="E.__dict__['p'].fget"),),
            "E.A.p",
            1,
            2,
            python=(3, 11),
        ),
        _kind("property of the metaclass that raises", "C.q", "return 1", "return 2", "C().q()", 1, 2, handle="C.__dict__['q']"),
    ),
)

ROWS = (ROW_1, ROW_2, ROW_3, ROW_4, ROW_5, ROW_6)
