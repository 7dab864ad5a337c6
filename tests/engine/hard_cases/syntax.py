"""Rows 16 to 19 and 23, 26: how the source is written. Strings, bytes, lines, new syntax, text that stands elsewhere too."""

from __future__ import annotations

from patchwork import at_start, required

from .row import Input, Refused, Row, change

_METHOD_TEXT = b'class C:\n    def f(self):\n        text = """a\n  b\n\t\n            c"""\n        return text\n'

ROW_16 = Row(
    16,
    "string over several lines",
    (
        Input(
            "in a method, less and more indented",
            _METHOD_TEXT,
            (change("C.f", "return text", "return text, 1"),),
            "C().f()",
            "a\n  b\n\t\n            c",
            ("a\n  b\n\t\n            c", 1),
        ),
        Input(
            "docstring and f-string in a nested block",
            'class C:\n    def f(self, x):\n        """One.\n\n            Two.\n        """\n        if x:\n'
            '            text = f"""\n            {x}\n        end"""\n            return text\n',
            (change("C.f", "return text", "return text + '!'"),),
            "C().f(1), C.f.__doc__.count('One')",
            ("\n            1\n        end", 1),
            ("\n            1\n        end!", 1),
        ),
        Input(
            "in the block that moves into another",
            'class C:\n    def f(self, x):\n        text = """a\n        b\n"""\n        return text\n',
            (
                change(
                    "C.f",
                    'text = """a\n        b\n"""',
                    'text = ""',
                    required("text = $V").replace('if x:\n    text = $V\nelse:\n    text = ""'),
                ),
            ),
            "C().f(1), C().f(0)",
            ("a\n        b\n", "a\n        b\n"),
            ("a\n        b\n", ""),
            not_for="a move of captured code is patchwork's own",
        ),
        Input(
            "with a backslash at the end of its line",
            "class C:\n    def f(self):\n        text = 'a\\\n        b'\n        return text\n",
            (change("C.f", "return text", "return text, 1"),),
            "C().f()",
            "a        b",
            ("a        b", 1),
        ),
    ),
)


def _bytes(words: str, before: bytes, added: bytes, *, at: bytes, stock: object = 1, patched: object = 2) -> Input:
    edit = required("return x").insert_before("if x:\n    x += 1")
    after = before.replace(at, added + at)
    return Input(
        words, before, (change("f", "return x", "if x:\n    x += 1\nreturn x", edit),), "f(1)", stock, patched, after=after
    )


ROW_17 = Row(
    17,
    "bytes outside the edit",
    (
        _bytes(
            "CRLF",
            b"def f(x):\r\n    y = '''a\r\nb'''  \r\n    return x\r\n",
            b"    if x:\r\n        x += 1\r\n",
            at=b"    return x",
        ),
        _bytes("tabs", b"def f(x):\n\ty = 1\n\treturn x\n", b"\tif x:\n\t\tx += 1\n", at=b"\treturn x"),
        _bytes(
            "form feed",
            b"z = 1\n\x0c\ndef f(x):\n    y = 1\n\x0c\n    return x\n",
            b"    if x:\n        x += 1\n",
            at=b"    return x",
        ),
        _bytes("byte order mark", b"\xef\xbb\xbfdef f(x):\n    return x\n", b"    if x:\n        x += 1\n", at=b"    return x"),
        _bytes(
            "latin-1",
            "# coding: latin-1\ndef f(x):\n    é = 'ü'\n    return x  # ß\n".encode("latin-1"),
            b"    if x:\n        x += 1\n",
            at=b"    return x",
        ),
        _bytes(
            "U+2028 in a string",
            "def f(x):\n    y = 'a\u2028b'; assert len(y) == 3\n    return x\n".encode(),
            b"    if x:\n        x += 1\n",
            at=b"    return x",
        ),
        _bytes("no final newline", b"def f(x):\n    y = 1\n    return x", b"    if x:\n        x += 1\n", at=b"    return x"),
        _bytes("CR only", b"def f(x):\r    y = 1\r    return x\r", b"    if x:\r        x += 1\r", at=b"    return x"),
        _bytes("two spaces", b"def f(x):\n  y = 1\n  return x\n", b"  if x:\n    x += 1\n", at=b"  return x"),
    ),
)

ROW_18 = Row(
    18,
    "anchor text elsewhere too",
    (
        Input(
            "docstring",
            'def f(x):\n    """Does return x."""\n    return x\n',
            (change("f", "return x", "return x + 1", places=(1,)),),
            "f(1), f.__doc__",
            (1, "Does return x."),
            (2, "Does return x."),
        ),
        Input(
            "comment, and a longer statement that begins alike",
            "def f(x):\n    if x > 5:\n        return x * 100  # not return x\n    return x\n",
            (change("f", "return x", "return x + 1", places=(2,)),),
            "f(1), f(6)",
            (1, 600),
            (2, 600),
        ),
        Input(
            "another function, before and after it",
            "def e(x):\n    return x\n\ndef f(x):\n    return x\n\ndef g(x):\n    return x\n",
            (change("f", "return x", "return x + 1"),),
            "e(1), f(1), g(1)",
            (1, 1, 1),
            (1, 2, 1),
        ),
        Input(
            "string that is a value",
            "def f(x):\n    message = 'g(x)'\n    return g(x), message\n\ndef g(x):\n    return x\n",
            (change("f", "g(x)", "(g(x) + 1)", places=(1,)),),
            "f(1)",
            (1, "g(x)"),
            (2, "g(x)"),
        ),
    ),
)


def _twice(words: str, source: str, old: str, new: str, was: str, use: str, stock: object, meant: object, lines: str) -> Input:
    """`meant`: what a change gives that says more than the statement (a diff has lines around it) and so finds the place."""
    refused = Refused("AnchorAmbiguous", ("matches 2 times, 1 expected", lines, "count="))
    return Input(words, source, (change("f", old, new, was=was),), use, stock, refused, also=(meant,))


ROW_19 = Row(
    19,
    "statement stands twice",
    (
        _twice(
            "in two branches",
            "def f(x):\n    y = 1\n    if x:\n        y += 1\n        return y\n    y += 1\n    return y\n",
            "y += 1",
            "y += 10",
            "def f(x):\n    y = 1\n    if x:\n        return y\n    y += 1\n    return y\n",
            "f(0), f(1)",
            (2, 2),
            (11, 2),
            "lines 4, 6",
        ),
        _twice(
            "one of them in a nested function",
            "def f(x):\n    def g():\n        return x\n    if x:\n        return g() * 2\n    return x\n",
            "return x",
            "return x + 1",
            "def f(x):\n    if x:\n        return x * 2\n    return x\n",
            "f(0), f(1)",
            (0, 2),
            (1, 2),
            "lines 3, 6",
        ),
        _twice(
            "call twice in one line, written differently",
            "def f(x):\n    return abs(x) + abs( x )\n",
            "abs(x)",
            "abs(x + 1)",
            "def f(x):\n    return abs(x)\n",
            "f(1)",
            2,
            2,
            "lines 2, 2",
        ),
    ),
)


def _lines(
    words: str, before: str, old: str, new: str, after: str, use: str, stock: object, patched: object, *edits: object
) -> Input:
    return Input(words, before, (change("f", old, new, *edits),), use, stock, patched, after=after.encode())


ROW_23 = Row(
    23,
    "statements that share lines",
    (
        _lines(
            "one-line if",
            "def f(x):\n    if x: return x  # why\n    return 0\n",
            "if x: return x",
            "if x:\n    x += 1\n    return x",
            "def f(x):\n    if x:\n        x += 1\n        return x  # why\n    return 0\n",
            "f(1), f(0)",
            (1, 0),
            (2, 0),
            required("return x").insert_before("x += 1"),
        ),
        _lines(
            "joined by semicolons",
            "def f(x):\n    y = x; z = y  # both\n    return z\n",
            "y = x; z = y",
            "y = x\ny += 1\nz = y",
            "def f(x):\n    y = x\n    y += 1\n    z = y  # both\n    return z\n",
            "f(1)",
            1,
            2,
            required("z = y").insert_before("y += 1"),
        ),
        _lines(
            "test of an elif",
            "def f(x):\n    if x == 1:\n        return 1\n    # two\n    elif x == 2:\n        return 2\n    return 0\n",
            "elif x == 2",
            "elif x - 1 == 2",
            "def f(x):\n    if x == 1:\n        return 1\n    # two\n    else:\n        x -= 1\n        if x == 2:\n"
            "            return 2\n    return 0\n",
            "f(1), f(2), f(3)",
            (1, 2, 0),
            (1, 0, 2),
            required("x == 2").insert_before("x -= 1"),
        ),
        _lines(
            "only statement of a block removed",
            "def f(x):\n    if x:  # asked\n        x = 5  # set\n    return x\n",
            "x = 5",
            "pass",
            "def f(x):\n    if x:  # asked\n        pass  # set\n    return x\n",
            "f(1)",
            5,
            1,
            required("x = 5").remove(),
        ),
        _lines(
            "all statements of a block removed one by one",
            "def f(x):\n    if x:\n        x = 5\n        x += 1\n    return x\n",
            "x = 5\n        x += 1",
            "pass",
            "def f(x):\n    if x:\n        pass\n    return x\n",
            "f(1)",
            6,
            1,
            required("x = 5").remove(),
            required("x += 1").remove(),
        ),
        _lines(
            "loop on one line behind a comment",
            "def f(x):\n    # count\n    for i in range(3): x += i; x += 1\n    return x\n",
            "x += i; x += 1",
            "x += 1",
            "def f(x):\n    # count\n    for i in range(3):\n        x += 1\n    return x\n",
            "f(0)",
            6,
            3,
            required("x += i").remove(),
        ),
    ),
)

_RETURN = change("f", "return x", "return x + 1")


def _new_syntax(words: str, source: str, python: tuple[int, int], use: str, stock: object, patched: object) -> Input:
    return Input(words, source, (_RETURN,), use, stock, patched, python=python)


ROW_26 = Row(
    26,
    "new syntax beside the edit",
    (
        _new_syntax(
            "match",
            'def f(x):\n    match x:\n        case {"a": [1, *rest], **more} if rest:\n            return rest\n'
            "        case str() | bytes():\n            return ''\n    return x\n",
            (3, 10),
            "f(1), f({'a': [1, 2]})",
            (1, [2]),
            (2, [2]),
        ),
        _new_syntax(
            "except*",
            "def f(x):\n    try:\n        raise ExceptionGroup('', [ValueError()])\n    except* ValueError as group:\n"
            "        x += 10\n    return x\n",
            (3, 11),
            "f(1)",
            11,
            12,
        ),
        _new_syntax(
            "PEP 695 generics",
            "type Alias[T] = list[T]\n\ndef f[U: int](x: U, *rest: U) -> U:\n    return x\n",
            (3, 12),
            "f(1), f.__type_params__[0].__bound__",
            (1, int),
            (2, int),
        ),
        Input(
            "generic class, with super()",
            "class A:\n    def f(self, x):\n        return x\n\nclass C[T](A):\n    def f[U](self, x: U) -> U:\n"
            "        x = super().f(x)\n        return x\n",
            (change("C.f", "return x", "return x + 1"),),
            "C().f(1), C.f.__annotations__['x'].__name__",
            (1, "U"),
            (2, "U"),
            python=(3, 12),
        ),
        _new_syntax(
            "PEP 701 nested f-strings",
            'def f(x):\n    y = f"{f"{\'\\n\'.join(["a", f"{x}"])}"}"\n    assert y == \'a\\n1\'\n    return x\n',
            (3, 12),
            "f(1)",
            1,
            2,
        ),
        _new_syntax(
            "PEP 758 except without parentheses",
            "def f(x):\n    try:\n        x = x.y\n    except AttributeError, TypeError:\n        pass\n    return x\n",
            (3, 14),
            "f(1)",
            1,
            2,
        ),
        _new_syntax(
            "t-string", "def f(x):\n    y = t\"{x} {t'{x}'}\"\n    assert y.values[0] == x\n    return x\n", (3, 14), "f(1)", 1, 2
        ),
        Input(
            "positional-only, walrus, parenthesised with and star in an index",
            "import contextlib\n\ndef f(x, /, *, k=1):\n    with (contextlib.nullcontext(x) as y, contextlib.nullcontext()):\n"
            "        if (z := y) and k:\n            return z\n",
            (change("f", "return z", "return z + 1", at_start("w = 0"), required("return z").replace("return z + 1 + w")),),
            "f(1)",
            1,
            2,
        ),
    ),
)

ROWS = (ROW_16, ROW_17, ROW_18, ROW_19, ROW_23, ROW_26)
