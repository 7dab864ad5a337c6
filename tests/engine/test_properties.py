"""Whatever the function and the edits: twice is as once, only the edit changes, and a revert gives everything back.

Functions that run are made at random, of every shape, and edited at random. What must come of it is worked out here on the syntax
tree, and what must stay by lines; neither asks the engine.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, assume, event, given, settings
from hypothesis import strategies as st

import patchwork
from patchwork import Patch, PatchError, at_start, one_of, optional, parameter, required, rewrite

HOLED = "anchor($X, k=1)"
STATEMENT = "acc.append(anchor($X, k=1))"

PRELUDE = """import contextlib
import functools

MARK = object()  # ü: anchor(a, k=1)


def anchor(x, k=0, new=0):
    return x * 10 + k + new


def changed(x):
    return x * 100


def wrapped(function):
    @functools.wraps(function)
    def inner(*args, **named):
        return ["wrapped", function(*args, **named)]

    return inner


async def soon(x):
    return x


async def collected(items):
    return [item async for item in items]


def drive(coroutine):
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value


class Base:
    def f(self, a):
        return ["base", a, anchor(a, k=1)]

    __v = 3


"""


@dataclass(frozen=True)
class Shape:
    """A kind of function: what stands before its body, how it ends, how it is called, and where the raw function is."""

    header: str
    end: str
    call: str
    raw: str
    qualname: str = "f"
    decorator: str = ""
    pieces: tuple[str, ...] = ()


OWN = ("acc.append(super().f(a))", "acc.append(self.__v)", "acc.append(__class__.__name__)")
SIGNATURE = "a, b=2, *rest, c=MARK, **named"
SHAPES = {
    "function": Shape(f"def f({SIGNATURE}):", "return acc", "f(1, 5)", "f"),
    "positional": Shape("def f(a, /, b: int = 2) -> list:", "return acc", "f(1, b=5)", "f"),
    "bare": Shape("def f(a=1, b=5):  # anchor", "return acc", "f()", "f"),
    "lines": Shape("def f(\n    a,\n    b=2,  # two\n):", "return acc", "f(1, 5)", "f"),
    "lambda default": Shape("def f(a, b=2, *, c=lambda x=(1, 2): x):", "return [acc, c()]", "f(1, 5)", "f"),
    "wrapped": Shape(f"def f({SIGNATURE}):", "return acc", "f(1, 5)", "f.__wrapped__", decorator="@wrapped"),
    "cached": Shape("def f(a, b=2):", "return acc", "f(1, 5)", "f.__wrapped__", decorator="@functools.lru_cache(maxsize=None)"),
    "generator": Shape(f"def f({SIGNATURE}):", "yield from acc", "list(f(1, 5))", "f", pieces=("yield a", "got = yield")),
    "coroutine": Shape(f"async def f({SIGNATURE}):", "return acc", "drive(f(1, 5))", "f", pieces=("acc.append(await soon(a))",)),
    "async generator": Shape(f"async def f({SIGNATURE}):", "yield acc", "drive(collected(f(1, 5)))", "f", pieces=("yield a",)),
    "method": Shape(f"def f(self, {SIGNATURE}):", "return acc", "C().f(1, 5)", "C.f", "C.f", pieces=OWN),
    "static": Shape("def f(a, b=2):", "return acc", "C.f(1, 5)", "vars(C)['f'].__func__", "C.f", "@staticmethod"),
    "class": Shape("def f(cls, a, b=2):", "return acc", "C.f(1, 5)", "vars(C)['f'].__func__", "C.f", "@classmethod"),
    "property": Shape("def f(self, a=1, b=5):", "return acc", "C().f", "vars(C)['f'].fget", "C.f", "@property", OWN),
}
# Statements that run, and add what they make to `acc`.
PIECES = (
    "acc.append(a)  # a comment",
    "acc += [x * 2 for x in (a, b) if x]",
    "acc.append(f'{a!r:>4} {b:{a}} {{ü}}')",
    "for i in range(2):\n    acc.append(i)\nelse:\n    acc.append('else')",
    "try:\n    acc.append(1 // (a - a))\nexcept ZeroDivisionError as e:\n    acc.append(str(e))\nfinally:\n    acc.append('end')",
    "match a:\n    case 1 | 2:\n        acc.append('one')\n    case [x]:\n        acc.append(x)\n    case _:\n        pass",
    "with contextlib.suppress(KeyError), contextlib.nullcontext(a) as held:\n\n    acc.append({}[held])\n",
    "acc.append((lambda x, y=a: x + y)(b))",
    "def inner(x, *, y=a):\n    '''anchor(a, k=1)'''\n    return [x, y, b]\n\nacc.append(inner(3))",
    "text = '''anchor(a, k=1)\n  two\n\tthree'''\nacc.append(text)",
    "acc.append(sum(x for x in range(b) if x))",
    "if b: acc.append(b)",
    "acc.append(1); acc.append(2)",
    "while len(acc) < 3:\n    acc.append(None)",
    "class Local:\n    v = a\nacc.append(Local.v)",
    "acc.append({**{'k': a}, 'l': (yes := b), 'm': anchor(a)})",
    "acc.append(anchor(a, k=2))\n\n# anchor(a, k=1)",
    "acc.append(anchor(*[a], k=1))",
    "x: int = (a +\n          b)\nacc.append(x)",
)
ANCHORS = ("anchor(a, k=1)", "anchor(b,k = 1)", "(anchor(a, k=1))", "anchor(\n    a + b,\n    k=1,  # one\n)")
ANCHORED = (
    "acc.append({})",
    "{}",
    "{}  # alone",
    "acc.append([{} for _ in range(2)])",
    "acc.append(-{} ** 2)",
    "acc.append((lambda: {})())",
    "acc.append(not {} == 3)",
    "acc.append(f'{{{}}}')",
    "if {}:\n    acc.append('true')\nelse:\n    acc.append('false')",
    "if not a:\n    pass\nelif {}:\n    acc.append('elif')\nelse:\n    acc.append('else')",
    "if {0}:\n    acc.append({0})",
    "for i in [{0}]:\n    if i:\n        {0}",
    "if a: {}",
    "if a: acc.append({}); acc.append(1)",
    "for i in [{}]:\n    acc.append(i)",
    "x = {}; acc.append(x)",
    "acc.append(1); {}",
    "def inner():\n    return {}\n\nacc.append(inner())",
    "with contextlib.suppress(KeyError):\n    acc.append({})",
    "try:\n    {}\nexcept KeyError:\n    acc.append({{}}[a])",
    "match {}:\n    case 11:\n        acc.append('eleven')\n    case _:\n        acc.append('other')",
    "while len(acc) < 4 and {}:\n    acc.append(0)",
    "assert {}, 'message'",
)


def indented(code: str, unit: str) -> str:
    """`code` one level deeper, its strings left alone; `unit` also replaces the four spaces that it has."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse("async def f():\n" + "\n".join(f" {line}" for line in code.split("\n")))):
        if isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(getattr(node, "value", ""), str):
            inside |= set(range(node.lineno, node.end_lineno or node.lineno))
    out = []
    for number, line in enumerate(code.split("\n"), start=1):
        depth = (len(line) - len(line.lstrip(" "))) // 4
        out.append(line if number in inside or not line else unit + unit * depth + line[4 * depth :])
    return "\n".join(out)


@dataclass(frozen=True)
class Made:
    """A module with a function `f`, as bytes and as text with \\n."""

    shape: Shape
    data: bytes
    text: str

    def __repr__(self) -> str:
        form = (self.data[:12], "CRLF" if bytes((13,)) in self.data else "LF")
        return f"{self.text.replace(PRELUDE, '')!r} in {form}"


def placed(statement: str, anchor: str) -> str:
    return statement.format(anchor.replace("\n", "").replace("# one", "") if "f'" in statement else anchor)


@st.composite
def modules(draw: st.DrawFn) -> Made:
    shape = draw(st.sampled_from(list(SHAPES.values())))
    pieces = st.sampled_from([*PIECES, *shape.pieces])
    anchored = st.builds(placed, st.sampled_from(ANCHORED), st.sampled_from(ANCHORS))
    statements = draw(st.permutations([*draw(st.lists(pieces, max_size=4)), *draw(st.lists(anchored, min_size=1, max_size=2))]))
    block = "\n".join(statements)
    header = draw(
        st.sampled_from(["", "", "", "if a:", "for _ in (0, 1):", "with contextlib.suppress(KeyError):", "if not a: pass\nelse:"])
    )
    unit = draw(st.sampled_from(["    ", "\t", "  "]))
    if header:
        block = f"{header}\n{indented(block, '    ')}"
    docstring = draw(st.sampled_from(["", '"""Doc."""\n', "'''Doc.\n\n  more: anchor(a, k=1)\n'''\n\n"]))
    first = draw(st.sampled_from(["", "", "first = anchor(a, k=1)\n"]))
    body = indented(f"{docstring}{first}acc = []\n{block}\n{shape.end}", unit)
    text = f"{shape.decorator}\n{shape.header}\n{body}" if shape.decorator else f"{shape.header}\n{body}"
    if shape.qualname == "C.f":
        text = f"class C(Base):\n{unit}__v = 4\n\n{indented_as_is(text, unit)}"
    tail = draw(st.sampled_from(["", "\n", "\n\n\ndef last(a):\n  return anchor(a, k=1)\n", "\n# end: anchor(a, k=1)"]))
    encoding, cookie = draw(st.sampled_from([("utf-8", ""), ("utf-8-sig", ""), ("latin-1", "# coding: latin-1\n")]))
    text = cookie + PRELUDE + text + tail
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return Made(shape, text.replace("\n", newline).encode(encoding), text)


def indented_as_is(code: str, unit: str) -> str:
    """`code` one level deeper, whatever its own units."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(getattr(node, "value", ""), str):
            inside |= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(code.split("\n"), start=1)
    return "\n".join(line if number in inside or not line else unit + line for number, line in lines)


@dataclass(frozen=True)
class Wish:
    """One edit, as data: for the engine and for the syntax tree."""

    action: str
    code: str = ""
    name: str = ""


WISHES = (
    Wish("replace", "changed($X) + 1"),
    Wish("replace", "a if changed($X) else b"),
    Wish("replace", "a and b or $X"),
    Wish("replace", "(one := changed($X))"),
    Wish("replace", "[changed($X)\n, 2][0]"),
    Wish("replace statement", "acc.append('replaced')\nacc.append(changed($X))"),
    Wish("replace statement", "pass"),
    Wish("set_argument", "5", "new"),
    Wish("set_argument", "2 if a else 3", "k"),
    Wish("insert_before", "acc.append('before')"),
    Wish("insert_before", "if a:\n    acc.append('''m\n  n''')\nelse:\n    # why\n    pass"),
    Wish("insert_after", "acc.append('after')"),
    Wish("insert_after", "for step in range(2):\n    acc.append(step)\nacc.append('done')"),
    Wish("remove"),
    Wish("parameter", "MARK", "extra"),
    Wish("parameter", "1, 2", "extra"),
    Wish("at_start", "started = '''s\n  t'''\nassert started"),
)


def change(wish: Wish, matches: int, form: str) -> Any:
    """The engine's edit: required, optional or one of several; with a count, at least one, or neither where one match does."""
    if wish.action == "parameter":
        return parameter(wish.name, default=wish.code)
    if wish.action == "at_start":
        return at_start(wish.code)
    number: dict[str, int] = {"at_least": 1} if form == "at_least" else {} if matches == 1 else {"count": matches}
    anchor = (optional if form == "optional" else required)(STATEMENT if wish.action == "replace statement" else HOLED, **number)
    if wish.action == "remove":
        return anchor.remove()
    if wish.action == "set_argument":
        return anchor.set_argument(wish.name, wish.code)
    edit = getattr(anchor, wish.action.partition(" ")[0])(wish.code)
    return one_of(required("never($X)").replace("$X"), edit) if form == "one_of" else edit


def patches(draw: st.DrawFn, made: Made, module: str) -> tuple[Patch, list[Wish]]:
    """A patch of one to three wishes, each for another action."""
    wishes = draw(st.lists(st.sampled_from(WISHES), min_size=1, max_size=3, unique_by=lambda wish: wish.action))
    function = target(ast.parse(made.text))
    edits = []
    for wish in wishes:
        statements = wish.action == "replace statement"
        matches = sum(is_statement(node) if statements else is_anchor(node) for node in ast.walk(function))
        assume(matches)
        edits.append(change(wish, matches, draw(st.sampled_from(["required", "optional", "at_least", "one_of"]))))
    return Patch("own.patch", f"{module}:{made.shape.qualname}", edits), wishes


# What must come of it, on the syntax tree.


def target(tree: ast.Module) -> Any:
    """The function `f`: the module's or that of its class C."""
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "C"]
    [found] = (node for block in [tree.body, *classes] for node in block if getattr(node, "name", "") == "f")
    return found


def is_anchor(node: ast.AST) -> bool:
    text = ast.unparse(node) if isinstance(node, ast.Call) else ""
    return text.startswith("anchor(") and not text.startswith("anchor(*") and text.endswith(", k=1)")


def is_statement(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("acc.append(anchor(") and is_anchor(node.value.args[0])  # type: ignore[attr-defined]


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, those of statements inside it left out."""
    todo: list[ast.AST] = [statement]
    for node in todo:
        yield node
        todo.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def filled(code: str, anchor: ast.Call) -> list[ast.stmt]:
    return ast.parse(code.replace("$X", f"({ast.unparse(anchor.args[0])})")).body


class Expressions(ast.NodeTransformer):
    def __init__(self, wish: Wish) -> None:
        self.wish = wish

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not is_anchor(node):
            return node
        if self.wish.action == "replace":
            [statement] = filled(f"({self.wish.code})", node)
            return statement.value  # type: ignore[attr-defined]
        keywords = [item for item in node.keywords if item.arg != self.wish.name]
        value = ast.parse(self.wish.code, mode="eval").body
        added = ast.keyword(self.wish.name, value)
        kept = [added if item.arg == self.wish.name else item for item in node.keywords]
        return ast.Call(node.func, node.args, kept if len(keywords) < len(node.keywords) else [*node.keywords, added])


def edited(block: list[ast.stmt], wishes: list[Wish]) -> list[ast.stmt]:
    """A block of statements as the wishes make it; raises ValueError where one cannot be had."""
    out: list[ast.stmt] = []
    of = {wish.action: wish for wish in wishes}
    for statement in block:
        inner: list[Any] = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
        for holder, name in itertools.product(inner, ("body", "orelse", "finalbody")):
            if getattr(holder, name, None):
                setattr(holder, name, edited(getattr(holder, name), wishes))
        anchors = [node for node in own_nodes(statement) if is_anchor(node)]
        if not anchors:
            out.append(statement)
            continue
        [anchor] = anchors
        middle = [statement]
        if "remove" in of:
            if not (isinstance(statement, ast.Expr) and is_anchor(statement.value)):
                raise ValueError("part of a statement")
            middle = []
        if "replace statement" in of and is_statement(statement):
            middle = filled(of["replace statement"].code, anchor)  # type: ignore[arg-type]
        for action in {"replace", "set_argument"} & set(of):
            middle = [Expressions(of[action]).visit(item) for item in middle]
        out += ast.parse(of["insert_before"].code).body if "insert_before" in of else []
        out += middle
        out += ast.parse(of["insert_after"].code).body if "insert_after" in of else []
    return out or [ast.Pass()]


def expected(text: str, wishes: list[Wish]) -> str:
    tree = ast.parse(text)
    function = target(tree)
    function.body = edited(function.body, wishes)
    for wish in wishes:
        if wish.action == "at_start":
            after = int(ast.get_docstring(function) is not None)
            function.body[after:after] = ast.parse(wish.code).body
        if wish.action == "parameter":
            function.args.kwonlyargs.append(ast.arg(wish.name))
            function.args.kw_defaults.append(ast.parse(wish.code, mode="eval").body)
    return dumped(tree)


def dumped(tree: ast.AST) -> str:
    """A tree as text: the order of keywords and the conversions of f-strings included, positions left out.

    So is a `pass` beside other statements: a removal may leave one.
    """
    tree = copy.deepcopy(tree)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [item for item in block if not isinstance(item, ast.Pass)] or block[:1])
    return ast.dump(tree)


def changeable(text: str, wishes: list[Wish]) -> set[int]:
    """Numbers of the lines that an edit may touch: of the statements around anchors (their headers), and of the signature."""
    lines: set[int] = set()
    function = target(ast.parse(text))
    for statement in ast.walk(function):
        if isinstance(statement, ast.stmt) and any(is_anchor(node) for node in own_nodes(statement)):
            first = statement.body[0].lineno if getattr(statement, "body", None) else statement.end_lineno  # type: ignore[attr-defined]
            lines |= set(range(statement.lineno, (first or 0) + 1))
    if any(wish.action == "parameter" for wish in wishes):
        lines |= set(range(function.lineno, function.body[0].lineno))
    return lines


def refusable(made: Made, wishes: list[Wish]) -> bool:
    """Whether an edit may be refused: two change the same code, one removes, or replaces within an f-string of old Pythons."""
    changing = {"replace", "replace statement", "set_argument", "remove"} & {wish.action for wish in wishes}
    return len(changing) > 1 or "remove" in changing or (sys.version_info < (3, 12) and "f'{" in made.text)


def assert_lines_kept(before: bytes, after: bytes, may_change: set[int]) -> None:
    """All other lines of `before` are in `after`, whole and in order."""
    kept = [line for number, line in enumerate(before.split(b"\n"), start=1) if number not in may_change]
    rest = iter(after.split(b"\n"))
    for line in kept:  # the last line may have gained a line ending
        assert any(line in (found, found.rstrip(b"\r")) for found in rest), line


PHASES = [Phase.explicit, Phase.generate, Phase.shrink]


@settings(max_examples=150, derandomize=True, phases=PHASES)
@given(made=modules(), data=st.data())
def test_an_edit_is_made_once_and_changes_nothing_else(made: Made, data: st.DataObject) -> None:
    patch, wishes = patches(data.draw, made, "lib.core")
    try:
        once = rewrite(made.data, patch)
    except PatchError as error:
        event(f"refused: {type(error).__name__}")
        if not refusable(made, wishes):
            raise
        assume(False)
    text = once.source.decode("latin-1" if b"latin-1" in made.data else "utf-8-sig").replace("\r\n", "\n")
    assert dumped(ast.parse(text)) == expected(made.text, wishes)
    newline = b"\r\n" if b"\r\n" in made.data else b"\n"
    assert once.source.count(b"\n") == once.source.count(newline)
    inserts = any(wish.action.startswith("insert") for wish in wishes)
    if not ("elif" in made.text and inserts):  # which has to become `else:` and an `if` below it
        assert_lines_kept(made.data, once.source, changeable(made.text, wishes))
    try:
        twice = rewrite(once.source, patch)
    except PatchError as error:
        event(f"refused the second time: {type(error).__name__}")
        return
    assert twice.source == once.source
    assert twice.edits == ()


# The same in living modules.

_numbers = itertools.count()


def living(made: Made, folder: Path) -> types.ModuleType:
    """The module, written to disk and imported under a name of its own."""
    name = f"lib_{next(_numbers)}"
    path = folder / f"{name}.py"
    path.write_bytes(made.data)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(space: dict[str, Any], shape: Shape) -> object:
    """What a call of the function gives, or how it fails; objects made anew in each module by their kind."""
    try:
        value = eval(shape.call, space)
    except (AssertionError, LookupError, NameError, TypeError, ValueError) as error:
        return type(error), str(error)
    return repr(value)


def parts(function: types.FunctionType) -> list[object]:
    """The objects that a function consists of."""
    named = function.__kwdefaults__ or {}
    return [function.__code__, function.__defaults__, *named, *named.values(), *(function.__closure__ or ())]


@settings(max_examples=100, derandomize=True, phases=PHASES)
@given(made=modules(), data=st.data())
def test_a_patched_function_does_what_its_text_says_and_a_revert_gives_everything_back(
    made: Made, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    module = living(made, tmp_path_factory.getbasetemp())
    patch, wishes = patches(data.draw, made, module.__name__)
    function = eval(made.shape.raw, vars(module))
    before = result(vars(module), made.shape)
    kept, defaults = parts(function), function.__kwdefaults__
    try:
        try:
            patchwork.apply(patch)
        except PatchError as error:
            event(f"refused: {type(error).__name__}")
            if not refusable(made, wishes):
                raise
            refused = True
        else:
            refused = False
            space: dict[str, Any] = {"__name__": module.__name__}
            exec(compile(rewrite(made.data, patch).source, "<once>", "exec"), space)
            assert result(vars(module), made.shape) == result(space, made.shape)
            assert eval(made.shape.raw, vars(module)) is function
            assert function.__code__ is not kept[0]
            assert function.__defaults__ is kept[1]
            added = {wish.name for wish in wishes if wish.action == "parameter"}
            assert set(function.__kwdefaults__ or ()) == set(defaults or ()) | added
        patchwork.revert()
        assert all(one is two for one, two in zip(kept, parts(function), strict=True))
        assert eval(made.shape.raw, vars(module)) is function
        assert result(vars(module), made.shape) == before
        assume(not refused)
    finally:
        patchwork.revert()
        del sys.modules[module.__name__]


# What random functions found, small.


def rewritten(body: str, *edits: Any) -> list[str]:
    source = "def f(a):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    return rewrite(source, Patch("own.patch", "lib.core:f", edits)).source.splitlines()[1:]


def test_inserts_between_two_statements_stay_with_their_own():
    before, after = (
        required("one($X)", count=2).insert_before("before($X)"),
        required("one($X)", count=2).insert_after("after($X)"),
    )
    wanted = [f"    {name}({value})" for value in (1, 2) for name in ("before", "one", "after")]
    assert rewritten("one(1)\none(2)", before, after) == wanted
    assert rewritten("one(1)\none(2)", after, before) == wanted


def test_inserts_that_end_at_one_line_go_in_from_the_innermost():
    edits = [required("if one($X): $$$_").insert_after("outer()"), required("two($X)").insert_after("inner()")]
    wanted = ["    if one(1):", "        two(2)", "        inner()", "    outer()"]
    assert rewritten("if one(1):\n    two(2)", *edits) == wanted
    assert rewritten("if one(1):\n    two(2)", *reversed(edits)) == wanted


def test_what_goes_to_the_start_goes_before_what_goes_before_the_first_statement():
    edits = [required("one($X)").insert_before("before()"), at_start("started()")]
    assert rewritten("one(1)", *edits) == ["    started()", "    before()", "    one(1)"]
    assert rewritten("'''Doc.'''\none(1)", *reversed(edits)) == ["    '''Doc.'''", "    started()", "    before()", "    one(1)"]
