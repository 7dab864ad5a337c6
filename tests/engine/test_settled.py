"""A second rewrite changes nothing: it is native or refused, and edits for which that cannot be are refused at once."""

from __future__ import annotations

import pytest

from patchwork import InvalidResult, Patch, PatchError, one_of, required, rewrite


def patch(*edits: object, **more: object) -> Patch:
    return Patch("own.patch", "lib:f", edits, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "edits"),
    [
        ("return x - y", [required("$A - $B").replace("$B - $A")]),
        ("return x < y", [required("$A < $B").replace("$B < $A")]),
        ("return x[y]", [required("$A[$B]").replace("$B[$A]")]),
        ("x, y = p", [required("$A, $B = $P").replace("$B, $A = $P")]),
        ("return x", [required("return $A").replace("return [$A]")]),
        ("return x if y else p", [required("$A if $C else $B").replace("$B if $C else $A")]),
        (
            "if x:\n        y()\n    else:\n        p()",
            [required("if $C:\n    $$$A\nelse:\n    $$$B").replace("if $C:\n    $$$B\nelse:\n    $$$A")],
        ),
        ("return p", [required("p").replace("q"), one_of(required("q").replace("p"), required("never()").remove())]),
        ("return a(x)", [one_of(required("a($X)").replace("a($X, 2)"), required("a($X, 2)").replace("a($X, 2, 3)"))]),
        ("return a(x, y)", [required("a($X, $Y)").replace("a($Y, $X)")]),
        ("return g(x, 1, 2)", [required("g($A, $$$R)").replace("g($$$R)")]),
        ("return g(g(g(x)))", [required("g(g(g($A)))").replace("g(g($A))"), required("p.never", count=1)]),
    ],
)
def test_a_patch_that_would_change_its_own_result_is_refused(body: str, edits: list[object]) -> None:
    """Not `native` where nothing was done, and not changed back and forth."""
    with pytest.raises(PatchError) as caught:
        rewrite(f"def f(x, y, p, q):\n    {body}\n", patch(*edits))
    if isinstance(caught.value, InvalidResult):
        assert "change their own result again" in caught.value.what
        assert "fixed_when=" in caught.value.hint


@pytest.mark.parametrize(
    ("body", "anchor", "code", "result"),
    [
        ("return a(x, y)", "a(x, y)", "a(y, x)", "return a(y, x)"),
        ("return g(g(x))", "g(g($A))", "g($A)", "return g(x)"),
        ("return p.q.r()", "$A.q.r()", "$A.r()", "return p.r()"),
        ("return g(a=x, b=2)", "g(a=x, b=$B)", "g(a=$B, b=x)", "return g(a=2, b=x)"),
        ("return g(x, 1)", "g(x, $$$R)", "g($$$R)", "return g(1)"),
    ],
)
def test_a_result_that_spells_nothing_new_is_made_and_not_taken_for_done(body: str, anchor: str, code: str, result: str) -> None:
    source = f"def f(x, y, p):\n    {body}\n"
    own = patch(required(anchor).replace(code))
    done = rewrite(source, own)
    assert done.states == {"own.patch": "applied"}
    assert done.source == source.replace(body, result)
    with pytest.raises(PatchError):  # nothing tells the result from drift; fixed_when can
        rewrite(done.source, own)
    assert rewrite(done.source, patch(required(anchor).replace(code), fixed_when=result)).states == {"own.patch": "native"}


def test_inserts_of_several_edits_and_patches_at_one_place_are_recognised() -> None:
    source = "def f(x):\n    g(x)\n    return x\n"
    one = Patch("one.a", "lib:f", [required("g($X)").insert_after("first($X)"), required("g($X)").insert_before("zero()")])
    two = Patch("two.b", "lib:f", [required("g($X)").insert_after("second($X)"), required("return x").insert_before("third()")])
    done = rewrite(source, [one, two])
    assert done.source == "def f(x):\n    zero()\n    g(x)\n    first(x)\n    second(x)\n    third()\n    return x\n"
    again = rewrite(done.source, [one, two])
    assert again.source == done.source
    assert again.states == {"one.a": "native", "two.b": "native"}


def test_an_insert_whose_capture_another_edit_changes_is_refused() -> None:
    edits = (required("g($X)").insert_after("p($X)"), required("a").replace("b"))
    with pytest.raises(InvalidResult, match="change their own result again"):
        rewrite("def f(a, b):\n    g(a)\n", patch(*edits))
