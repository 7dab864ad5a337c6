"""every(): a use that no anchor accounts for is drift."""

from __future__ import annotations

import textwrap

import pytest

from patchwork import InvalidPatch, Patch, UnaccountedUse, every, one_of, optional, required, rewrite

TWO = """
def f(self, args):
    cut = args.length != 0
    rows = self.tokenize(args.text, truncation=cut)
    return pack(rows)
"""
THREE = TWO.replace("    return", "    if cut and args.length > 0:\n        rows = rows[: args.length]\n    return")
FOUR = TWO.replace("    return", "    messages = cut and args.messages\n    return")
EDITS = (
    required("self.tokenize($$$ARGS, truncation=cut)").set_argument("truncation", "cut and not whole"),
    optional("if cut and $REST:\n    $$$BODY").replace("if cut and not whole and $REST:\n    $$$BODY"),
    every("cut", accounted_by="cut = $VALUE"),
)


def done(source: str, *edits: object) -> str:
    return rewrite(textwrap.dedent(source).lstrip("\n"), Patch("own.patch", "lib:f", edits or EDITS)).source  # type: ignore[arg-type]


def refused(source: str, *edits: object) -> str:
    with pytest.raises(UnaccountedUse) as caught:
        done(source, *edits)
    return str(caught.value)


def test_every_use_is_accounted_for_in_the_releases_that_are_known() -> None:
    assert "truncation=cut and not whole" in done(TWO)
    assert "if cut and not whole and args.length > 0:" in done(THREE)


def test_a_use_that_is_new_is_drift_and_named() -> None:
    text = refused(FOUR)
    assert "1 of 3 uses of cut that no anchor accounts for" in text
    assert "line 4: messages = cut and args.messages" in text


def test_a_source_that_is_patched_already_is_accounted_for() -> None:
    for source in (TWO, THREE):
        again = rewrite(done(source), Patch("own.patch", "lib:f", EDITS))
        assert again.states == {"own.patch": "native"}


def test_a_use_that_a_hole_swallows_is_not_accounted_for() -> None:
    source = TWO.replace("args.text, ", "args.text, cut, ")
    assert "line 3" in refused(source)
    body = THREE.replace("rows[: args.length]", "rows[: args.length + cut]")
    assert "line 5" in refused(body)


def test_a_use_in_a_nested_function_counts() -> None:
    assert "line 5: return cut" in refused(TWO.replace("    return", "    def inner():\n        return cut\n    return"))


def test_a_whole_call_can_be_guarded() -> None:
    edits = (required("pack($X)").replace("pack_right($X)"), every("pack($$$ANY)"))
    assert "pack_right(rows)" in done(TWO, *edits)
    assert "pack(rows, 1)" in refused(TWO.replace("    return", "    pack(rows, 1)\n    return"), *edits)


def test_alternatives_conditions_and_inserts_account_for_what_they_match() -> None:
    edits = (
        one_of(required("old(cut)").remove(), required("self.tokenize($_, truncation=cut)").insert_before("whole = 1")),
        required("cut = $VALUE"),
        every("cut"),
    )
    assert "whole = 1" in done(TWO, *edits)


def test_a_repaired_release_is_not_asked() -> None:
    patch = Patch("own.patch", "lib:f", (*EDITS[2:], required("gone()").remove()), fixed_when="pack(rows)")
    assert rewrite(FOUR, patch).states == {"own.patch": "native"}


def test_a_guard_that_finds_nothing_guards_nothing() -> None:
    assert "finds no use of cute" in refused(TWO, required("pack($X)").replace("pack_right($X)"), every("cute"))


@pytest.mark.parametrize("pattern", ["", "if (", "$X", "$$$X", "# note"])
def test_a_guard_needs_a_pattern_that_says_something(pattern: str) -> None:
    with pytest.raises(InvalidPatch):
        every(pattern)


@pytest.mark.parametrize("covered", ["if (", [""], [3]])
def test_what_accounts_for_a_use_must_be_patterns(covered: object) -> None:
    with pytest.raises(InvalidPatch):
        every("cut", accounted_by=covered)  # type: ignore[arg-type]
