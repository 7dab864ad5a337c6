"""Whatever the function and the edit: twice is as once, and bytes outside the edit stay."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwork import AnchorMissing, InvalidResult, Patch, at_start, optional, parameter, required, rewrite

ANCHOR = "anchor(a, k=1)"
HOLED = "anchor($X, k=1)"

names = st.sampled_from(
    ["a", "b", "c.d", "e[0]", "'x'", '"""m\n  n"""', "f(1)", "(a\n + b)", "'ü\u2028'", "lambda: 0", "-1", "*()"]
)
calls = st.builds("{}({})".format, st.sampled_from(["foo", "bar.baz"]), st.lists(names, max_size=3).map(", ".join))
simple = st.one_of(
    calls,
    st.builds("x = {}".format, calls),
    st.builds("y: int = {}  # note".format, calls),
    st.sampled_from(
        ["pass", "x += 1", "assert a, b", "import os as o", "return", "# comment only\npass", "x = 1;", "x = 1; y = 2"]
    ),
)
# Where the anchor stands: a statement of its own, inside one, or beside others on its line.
anchored = st.sampled_from(
    [
        ANCHOR,
        f"x = {ANCHOR}",
        f"return {ANCHOR}  # why",
        f"x = 1; {ANCHOR}",
        f"{ANCHOR}; x = 1",
        f"x = [{ANCHOR} * 2, a]",
        f"if a: {ANCHOR}",
        f"if {ANCHOR}: x = 1",
        f"if a:\n    pass\nelif {ANCHOR}:\n    x = 1\nelse:\n    pass",
        f"for i in {ANCHOR}:\n    pass",
        f"with a as b:\n\n    {ANCHOR}\n",
        f"try:\n    x = 1\nexcept E:\n    {ANCHOR}\nfinally:\n    pass",
        f"if a: \\\n    {ANCHOR}",
        f"x = 1; \\\n  {ANCHOR}; \\\n  y = 1",
    ]
)


def block(statement: str, blocks: list[str]) -> str:
    return "\n".join([*blocks[: len(blocks) // 2], statement, *blocks[len(blocks) // 2 :]])


def indented(code: str, unit: str) -> str:
    inside: set[int] = set()
    for node in ast.walk(ast.parse(textwrap.dedent(code))):
        if isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(getattr(node, "value", ""), str):
            inside |= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    lines = code.split("\n")
    return "\n".join(line if number in inside or not line else unit + line for number, line in enumerate(lines, start=1))


@st.composite
def sources(draw: st.DrawFn) -> bytes:
    body = block(draw(anchored), draw(st.lists(simple, max_size=4)))
    unit = draw(st.sampled_from(["    ", "\t", "  "]))
    if draw(st.booleans()):
        header = draw(st.sampled_from(["while a:", "if a:", "def inner():", "async def inner():", "class C:"]))
        body = f"{header}\n{indented(body, unit)}"
        if "class C" in body:
            body = re.sub(r"\breturn\b(?=$|\s*$)", "pass", body, flags=re.MULTILINE).replace("return ", "r = ")
    docstring = draw(st.sampled_from(["", '"""Doc."""\n', '"""Doc.\n\n  more anchor(a, k=1)\n"""\n']))
    head = draw(st.sampled_from(["", "# coding: utf-8\n", "\x0cimport os\n\n\n", "def other(a):\n\treturn a\n\n"]))
    tail = draw(st.sampled_from(["", "\n", "\n\n\ndef last(a):\n  return anchor(a)\n", "\n# end"]))
    text = (
        f"{head}def f(a, b=(1, 2), **kw):{draw(st.sampled_from(['', '  # signature']))}\n{indented(docstring + body, unit)}{tail}"
    )
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return text.replace("\n", newline).encode("utf-8-sig" if draw(st.booleans()) else "utf-8")


EDITS = {
    "replace": [required(HOLED).replace("changed($X) + 1")],
    "set_argument": [required("anchor($$$A)").set_argument("new", "a or b")],
    "set_argument in place": [required(HOLED).set_argument("k", "2 if a else 3")],
    "insert_before": [required(HOLED).insert_before("if $X:\n    before = '''\n  m'''\nelse:\n    before = 1")],
    "insert_after": [required(HOLED).insert_after("after = 1\nwith after:\n    after($X)")],
    "insert around": [required(HOLED).insert_before("first = 1"), required(HOLED).insert_after("last = 1")],
    "at_start": [at_start("started = 1\nstarted()")],
    "parameter": [parameter("new", default="None"), parameter("newer", default="1, 2")],
    "optional": [optional("never($X)").replace("changed($X)")],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS.keys())
@settings(max_examples=25, derandomize=True)
@given(source=sources())
def test_twice_is_as_once_and_bytes_outside_the_edit_stay(edits: list[object], source: bytes) -> None:
    patch = Patch(name="own.patch", target="lib.core:f", edits=edits)  # type: ignore[arg-type]
    compile(source, "<source>", "exec")
    once = rewrite(source, patch)
    twice = rewrite(once.source, patch)
    assert twice.source == once.source
    assert twice.edits == ()
    assert twice.states["own.patch"] == ("native" if once.edits else "applied")
    compile(once.source, "<source>", "exec")
    newline = b"\r\n" if b"\r\n" in source else b"\n"
    assert once.source.count(b"\n") == once.source.count(newline)
    begin, end = function_bytes(source)
    assert once.source.startswith(source[:begin])
    assert once.source.endswith(source[end:])
    if not shares_lines(source):
        assert_kept(source, once.source)


def function_bytes(source: bytes) -> tuple[int, int]:
    """Where the function's own bytes begin and end: what stands outside must not change."""
    begin = source.index(b"def f(")
    ends = [source.find(mark, begin) for mark in (b"\ndef last", b"\r\ndef last") if source.find(mark, begin) >= 0]
    return begin, min(ends, default=len(source))


def shares_lines(source: bytes) -> bool:
    """Whether some lines may have to be written out, one statement a line."""
    lines = source.decode("utf-8-sig").splitlines()
    return (
        b";" in source
        or b"\\" in source
        or any(ANCHOR in line and ("elif" in line or line.split(ANCHOR)[0].rstrip().endswith(":")) for line in lines)
    )


def assert_kept(before: bytes, after: bytes) -> None:
    """All lines of `before` but the anchor's and the signature are in `after`, whole and in order."""
    kept = [line for line in before.split(b"\n") if b"anchor(" not in line and b"def f(" not in line]
    lines = iter(after.split(b"\n"))
    # The last line may have gained a line ending.
    assert all(any(line in (found, found.rstrip(b"\r")) for found in lines) for line in kept)


@settings(max_examples=25, derandomize=True)
@given(source=sources())
def test_a_removal_is_made_once_or_refused(source: bytes) -> None:
    patch = Patch(name="own.patch", target="lib.core:f", edits=[required(HOLED).remove()])
    function = next(node for node in ast.parse(source).body if getattr(node, "name", "") == "f")
    whole = any(isinstance(node, ast.Expr) and ast.unparse(node) == ANCHOR for node in ast.walk(function))
    if not whole:
        with pytest.raises(InvalidResult, match="cannot remove an expression that is part of a statement"):
            rewrite(source, patch)
        return
    once = rewrite(source, patch)
    compile(once.source, "<source>", "exec")
    with pytest.raises(AnchorMissing):
        rewrite(once.source, patch)
