"""Patches of several packs on one function: their order, and their conflicts."""

from __future__ import annotations

import itertools

import pytest

from patchwork import InvalidPatch, Patch, PatchConflict, PatchError, at_start, required, rewrite

SOURCE = "def f(x):\n    g(x)\n    return x\n"


def starting(name: str, **order: object) -> Patch:
    return Patch(name, "lib:f", [at_start(f"{name.replace('.', '_')}()")], **order)  # type: ignore[arg-type]


def calls(*patches: Patch) -> list[str]:
    lines = rewrite(SOURCE, patches).source.split("\n")[1:-3]
    return [line.strip().removesuffix("()") for line in lines]


def test_without_a_word_the_order_is_that_of_the_patches() -> None:
    assert calls(starting("one.a"), starting("two.b")) == ["one_a", "two_b"]
    assert calls(starting("two.b"), starting("one.a")) == ["two_b", "one_a"]


def test_before_and_after_hold_in_whatever_order_the_patches_are_given() -> None:
    patches = [starting("one.a", after="two.*"), starting("two.b"), starting("three.c", before=["two.b", "one.a"])]
    for order in itertools.permutations(patches):
        assert calls(*order) == ["three_c", "two_b", "one_a"]


def test_inserts_at_one_place_follow_the_order() -> None:
    def inserting(name: str, **order: object) -> Patch:
        return Patch(name, "lib:f", [required("g($X)").insert_after(f"{name}($X)")], **order)  # type: ignore[arg-type]

    done = rewrite(SOURCE, [inserting("late", after="early"), inserting("early")])
    assert done.source == "def f(x):\n    g(x)\n    early(x)\n    late(x)\n    return x\n"


def test_a_name_that_no_patch_has_orders_nothing() -> None:
    assert calls(starting("one.a", after="absent.pack.*"), starting("two.b")) == ["one_a", "two_b"]


def test_a_circle_is_refused_and_named() -> None:
    patches = [starting("one.a", after="two.b"), starting("two.b", after="three.c"), starting("three.c", after="one.a")]
    with pytest.raises(InvalidPatch, match=r"circle: one.a after two.b after three.c after one.a"):
        rewrite(SOURCE, patches)


def test_a_conflict_names_both_patches_whatever_their_order() -> None:
    one = Patch("one.a", "lib:f", [required("g($X)").replace("h($X)")])
    two = Patch("two.b", "lib:f", [required("g(x)").remove()], before="one.a")
    for order in ([one, two], [two, one]):
        with pytest.raises(PatchConflict) as caught:
            rewrite(SOURCE, order)
        assert "one.a" in str(caught.value)
        assert "two.b" in str(caught.value)


def test_packs_agree_on_a_set_by_its_name(lib) -> None:  # type: ignore[no-untyped-def]
    """A set is all patches that share a name up to the last dot, whoever wrote them."""
    import patchwork

    lib.write("def f(x):\n    return x\ndef g(x):\n    return x\n")
    mine = lib.patch("f", required("return x").replace("return x + 1"), name="shared.set.mine")
    theirs = lib.patch("g", required("return y").replace("return 2"), name="shared.set.theirs")
    with pytest.raises(PatchError):
        patchwork.apply(mine, theirs)
    report = patchwork.apply(mine, theirs, strict=False)
    assert {outcome.patch: outcome.state for outcome in report} == {"shared.set.mine": "failed", "shared.set.theirs": "failed"}
    assert "shared.set.theirs" in report["shared.set.mine"].detail
    assert lib.load().f(1) == 1
