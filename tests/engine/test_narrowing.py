"""inside=, after=, before=: where an anchor may match."""

from __future__ import annotations

import textwrap

import pytest

from patchwork import AnchorAmbiguous, AnchorMissing, InvalidPatch, Patch, one_of, optional, required, rewrite

TWICE = """
def f(self, x):
    if self.training:
        x = g(x)
    else:
        x = g(x)
    for layer in self.layers:
        x = layer(x)
        x = g(x)
    return x
"""


def made(source: str, *edits: object, name: str = "f") -> str:
    done = rewrite(textwrap.dedent(source).lstrip("\n"), Patch("own.patch", f"lib:{name}", edits))  # type: ignore[arg-type]
    again = rewrite(done.source, Patch("own.patch", f"lib:{name}", edits))  # type: ignore[arg-type]
    assert again.source == done.source
    assert again.states == {"own.patch": "native"}
    return done.source


def changed_lines(source: str, *edits: object) -> list[int]:
    before, after = textwrap.dedent(source).lstrip("\n").split("\n"), made(source, *edits).split("\n")
    assert len(before) == len(after)
    return [number for number, (one, two) in enumerate(zip(before, after, strict=True), 1) if one != two]


def refused(kind: type[Exception], source: str, *edits: object) -> str:
    with pytest.raises(kind) as caught:
        rewrite(textwrap.dedent(source).lstrip("\n"), Patch("own.patch", "lib:f", edits))  # type: ignore[arg-type]
    return str(caught.value)


def test_without_narrowing_three_places_are_ambiguous() -> None:
    assert "lines 3, 5, 8" in refused(AnchorAmbiguous, TWICE, required("x = g(x)").replace("x = h(x)"))


@pytest.mark.parametrize(
    ("narrowed", "line"),
    [
        (required("x = g(x)", inside="if self.training:"), 3),
        (required("x = g(x)", inside="for $L in self.layers:"), 8),
        (required("x = g(x)", inside="for $L in self.layers:\n    $$$BODY"), 8),
        (required("x = g(x)", after="x = layer(x)"), 8),
        (required("g(x)", after="x = layer(x)"), 8),
        (
            required(
                "x = g(x)",
                inside="if self.training:\n    $$$A\nelse:\n    $$$B",
                after="if self.training:\n    $$$_\nelse:\n    $$$_",
            ),
            0,
        ),
        (required("x = g(x)", before="for $L in $X:\n    $$$BODY", inside="if self.training:"), 3),
    ],
)
def test_each_way_of_narrowing_finds_its_place(narrowed: object, line: int) -> None:
    edit = narrowed.replace("x = h(x)") if "x = " in narrowed.pattern else narrowed.replace("h(x)")  # type: ignore[attr-defined]
    if line == 0:
        refused(AnchorMissing, TWICE, edit)
    else:
        assert changed_lines(TWICE, edit) == [line]


def test_the_header_of_an_if_means_its_body_and_not_its_else() -> None:
    source = "def f(a):\n    if a:\n        g(1)\n    else:\n        g(2)\n"
    assert changed_lines(source, required("g($N)", inside="if a:").replace("h($N)")) == [3]


def test_a_header_may_have_decorators_branches_and_a_return_annotation_below() -> None:
    source = """
    def f(a):
        @wraps(a)
        def inner(x, *y, z=1, **kw) -> int:
            return g(x)
        try:
            g(1)
        except E as e:
            g(2)
        else:
            g(3)
        with a as b, c:
            g(4)
        while a < 3:
            g(5)
        return inner
    """
    for header, line in (
        ("def inner($$$ARGS):", 4),
        ("try:", 6),
        ("with a as b, c:", 12),
        ("while $T:", 14),
    ):
        assert changed_lines(source, required("g($N)", inside=header).replace("h($N)")) == [line]


def test_a_whole_pattern_means_all_that_it_matches_but_not_itself() -> None:
    source = "def f(a):\n    if a:\n        g(1)\n    else:\n        g(2)\n    return g(3)\n"
    whole = "if a:\n    $$$A\nelse:\n    $$$B"
    assert changed_lines(source, required("g($N)", inside=whole, count=2).replace("h($N)")) == [3, 5]
    assert "not inside=" in refused(AnchorMissing, source, required(whole, inside=whole).remove())


def test_an_expression_can_be_what_a_match_lies_in() -> None:
    source = "def f(a):\n    x = a + 1\n    return call(a + 1, other(a + 1))\n"
    assert made(source, required("a + 1", inside="other($X)").replace("a + 2")).endswith("return call(a + 1, other(a + 2))\n")


def test_after_and_before_are_about_where_the_other_ends_and_begins() -> None:
    source = "def f(a):\n    g(a, h(a))\n    h(a)\n"
    assert changed_lines(source, required("h(a)", after="g($$$ANY)").replace("k(a)")) == [3]
    assert "h(a)" in refused(AnchorMissing, source, required("h(a)", before="g($$$ANY)").replace("k(a)"))


def test_after_and_before_together() -> None:
    source = "def f(a):\n    g(a)\n    one()\n    g(a)\n    two()\n    g(a)\n"
    assert changed_lines(source, required("g(a)", after="one()", before="two()").replace("h(a)")) == [4]


def test_a_landmark_that_stands_twice_is_ambiguous() -> None:
    source = "def f(a):\n    one()\n    one()\n    g(a)\n"
    text = refused(AnchorAmbiguous, source, required("g(a)", after="one()").replace("h(a)"))
    assert "after= matches 2 times" in text
    assert "lines 2, 3" in text


def test_a_landmark_is_looked_for_inside_what_inside_names() -> None:
    source = "def f(a):\n    one()\n    g(a)\n    with a:\n        g(a)\n        one()\n        g(a)\n"
    assert changed_lines(source, required("g(a)", inside="with a:", after="one()").replace("h(a)")) == [7]


def test_a_landmark_may_lie_outside_of_what_inside_names() -> None:
    source = "def f(x):\n    setup()\n    if x:\n        g(1)\n    done()\n    if x:\n        g(2)\n"
    assert changed_lines(source, required("g($N)", inside="if x:", before="done()").replace("h($N)")) == [4]
    assert changed_lines(source, required("g($N)", inside="if x:", after="done()").replace("h($N)")) == [7]
    assert changed_lines(source, required("g($N)", inside="if x:", after="setup()", before="done()").replace("h($N)")) == [4]


def test_captures_of_the_narrowing_are_shared() -> None:
    source = """
    def f(a, b):
        for i in a:
            g(i)
            g(b)
        return g(a)
    """
    assert changed_lines(source, required("g($I)", inside="for $I in $X:").replace("h($I, $X)")) == [3]
    assert "h(i, a)" in made(source, required("g($I)", inside="for $I in $X:").replace("h($I, $X)"))


def test_two_enclosing_places_that_capture_different_code_are_ambiguous() -> None:
    source = "def f(a, b):\n    for i in a:\n        for j in b:\n            g()\n"
    text = refused(AnchorAmbiguous, source, required("g()", inside="for $I in $X:").replace("h($X)"))
    assert "capture different code" in text
    assert changed_lines(source, required("g()", inside="for $_ in $__:").replace("h()")) == [4]


def test_a_miss_says_where_the_pattern_does_match_and_what_kept_it_out() -> None:
    text = refused(AnchorMissing, TWICE, required("x = layer(x)", inside="if self.training:").remove())
    assert "line 7: the pattern matches, but not inside= if self.training: (lines 3)" in text
    text = refused(AnchorMissing, TWICE, required("x = layer(x)", after="nowhere()").remove())
    assert "after= nowhere() (not found)" in text


def test_one_of_and_optional_are_narrowed_too() -> None:
    alternatives = one_of(
        required("x = g(x)", inside="while $T:").replace("x = 1"),
        required("x = g(x)", inside="for $I in $X:").replace("x = h(x)"),
    )
    assert changed_lines(TWICE, alternatives) == [8]
    done = rewrite(TWICE, Patch("own.patch", "lib:f", [optional("x = g(x)", inside="while $T:").remove()]))
    assert done.missed == {"own.patch": ("x = g(x)",)}


def test_set_argument_and_inserts_keep_to_the_place() -> None:
    source = "def f(a):\n    if a:\n        g(1)\n    g(1)\n"
    assert made(source, required("g(1)", inside="if a:").set_argument("k", "a")).count("k=a") == 1
    assert made(source, required("g(1)", after="if a:\n    $$$_").insert_before("h()")).endswith("    h()\n    g(1)\n")


@pytest.mark.parametrize("name", ["inside", "after", "before"])
def test_a_narrowing_that_is_not_python_is_refused(name: str) -> None:
    with pytest.raises(InvalidPatch, match=f"{name} is not Python"):
        required("g()", **{name: "if ("})


@pytest.mark.parametrize("header", ["else:", "except E:", "case 1:"])
def test_a_header_must_be_one_of_a_statement(header: str) -> None:
    with pytest.raises(InvalidPatch, match="inside is not Python"):
        required("g()", inside=header)


def test_only_inside_takes_a_header() -> None:
    with pytest.raises(InvalidPatch, match="after is not Python"):
        required("g()", after="for x in y:")
