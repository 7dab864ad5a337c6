"""What an edit's code becomes: captured code means where it is put what it meant where it stood, or it is refused."""

from __future__ import annotations

import pytest

from patchwork import InvalidResult, Patch, parameter, required, rewrite


def done(body: str, *edits: object) -> str:
    source = f"def f(x, a=1, b=2):\n    return {body}\n"
    text = rewrite(source, Patch("own.patch", "lib:f", edits)).source  # type: ignore[arg-type]
    return text.split("return ", 1)[1].removesuffix("\n")


@pytest.mark.parametrize(
    ("body", "anchor", "code", "result"),
    [
        ("k() + 1", "k()", "z()  # because", "z() + 1"),
        ("not k() and x", "k()", "# first\nz()", "not z() and x"),
        ("k().a.b", "k()", "z()  # why", "z().a.b"),
        ("k() if x else 2", "k()", "z()  # '#'", "z() if x else 2"),
        ("g(k(), 2)", "k()", "z('# no comment')  # one", "g(z('# no comment'), 2)"),
        ("k() + 1", "k()", "z(  # inside\n  1)", "z(  # inside\n  1) + 1"),
    ],
)
def test_a_comment_of_an_expression_swallows_nothing(body: str, anchor: str, code: str, result: str) -> None:
    assert done(body, required(anchor).replace(code)) == result


def test_a_comment_in_an_argument_or_default_swallows_nothing() -> None:
    assert done("g(x)", required("g(x)").set_argument("k", "2  # why")) == "g(x, k=2)"
    patch = Patch("own.patch", "lib:f", [parameter("k", default="2  # why")])
    assert rewrite("def f(x):\n    pass\n", patch).source == "def f(x, *, k=2):\n    pass\n"


@pytest.mark.parametrize(
    ("body", "anchor", "code"),
    [
        ("g(a + b)", "g($A)", "x.$A"),
        ("g(a, b and x)", "g($X, $Y)", "$X.$Y"),
        ("g(a.b)", "g($A)", "x.$A"),
        ("g(1)", "g($A)", "h($A=x)"),
        ("x in {1}", "{1, $$$R}", "{$$$R}"),
        ("g()", "g($$$R)", "{$$$R}"),
        ("g(a, b)", "g($$$R)", "h(($$$R))"),
        ("g(a, k=b)", "g($$$R)", "[$$$R]"),
        ("g(a, k=b)", "g($$$R)", "h($$$R, x)"),
    ],
)
def test_captured_code_that_would_read_differently_is_refused(body: str, anchor: str, code: str) -> None:
    with pytest.raises(InvalidResult):
        done(body, required(anchor).replace(code))


@pytest.mark.parametrize(
    ("body", "anchor", "code", "result"),
    [
        ("g(a)", "g($A)", "x.$A", "x.a"),
        ("g(a)", "g($A)", "h($A=x)", "h(a=x)"),
        ("g(a, b)", "g($$$R)", "[0, $$$R]", "[0, a, b]"),
        ("g(a, *x, k=b)", "g($$$R)", "h(0, $$$R, z=1)", "h(0, a, *x, k=b, z=1)"),
        ("g(a + b)", "g($A)", "$A * 2", "(a + b) * 2"),
        ("g(a + b)", "g($A)", "h[$A]", "h[a + b]"),
        ("g((a, b))", "g($A)", "h[$A]", "h[(a, b)]"),
        ("x[1:2]", "x[$A]", "a[$A]", "a[1:2]"),
        ("g(lambda: a)", "g($A)", "$A or b", "(lambda: a) or b"),
        ("g(i for i in x)", "g($A)", "h($A, 1)", "h((i for i in x), 1)"),
    ],
)
def test_captured_code_keeps_its_meaning(body: str, anchor: str, code: str, result: str) -> None:
    assert done(body, required(anchor).replace(code)) == result


def test_a_whole_parameter_list_can_be_captured_and_written() -> None:
    source = "def f():\n    def g(a, /, b=1, *c, d: int = 2, **e):\n        return a\n    return g\n"
    patch = Patch("own.patch", "lib:f", [required("def g($$$P):\n    $$$B").replace("def h($$$P):\n    start()\n    $$$B")])
    assert "    def h(a, /, b=1, *c, d: int=2, **e):\n        start()\n        return a\n" in rewrite(source, patch).source
    patch = Patch("own.patch", "lib:f", [required("lambda $$$P: $B").replace("lambda $$$P: ($B, 1)")])
    assert rewrite("def f():\n    return lambda x, y=2: x\n", patch).source == "def f():\n    return lambda x, y=2: (x, 1)\n"
