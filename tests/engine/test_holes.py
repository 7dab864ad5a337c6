"""Code with holes as plain Python, and back."""

from __future__ import annotations

import pytest

from patchwork.engine.holes import fill_holes, hole_of, holes_in, is_free, many_of, python_of


def test_holes_are_found_as_written() -> None:
    assert holes_in("f($X, $$$ARGS, k=$_)") == {"$X", "$$$ARGS", "$_"}


@pytest.mark.parametrize(
    "code",
    ["'$X'", '"$X"', "'''a\n$X'''", "f'{x}$X'", "rb'$X'", "x  # $X", "'it\\'s $X'", '"""say "$X" twice"""'],
)
def test_strings_and_comments_have_no_holes(code: str) -> None:
    assert holes_in(code) == frozenset()
    assert python_of(code) == code


def test_a_hole_behind_a_string_is_seen() -> None:
    assert holes_in("f('a', $X, \"b\", $Y)  # $Z") == {"$X", "$Y"}


def test_one_and_many_of_the_same_name_are_two_holes() -> None:
    assert holes_in("f($A, $$$A)") == {"$A", "$$$A"}
    assert fill_holes(python_of("f($A, $$$A)"), {"$A": "x", "$$$A": "y, z"}) == "f(x, y, z)"


def test_a_name_that_begins_like_another_is_not_filled_for_it() -> None:
    assert fill_holes(python_of("$X + $X2"), {"$X": "a", "$X2": "b"}) == "a + b"


def test_reserved_identifiers_lead_back_to_their_hole() -> None:
    assert hole_of(python_of("$X")) == "$X"
    assert many_of(python_of("$$$X")) == "$$$X"
    assert hole_of("x") is None
    assert many_of(python_of("$X")) is None


def test_only_an_underscore_makes_a_hole_free() -> None:
    assert is_free("$_")
    assert is_free("$$$_REST")
    assert not is_free("$X_")


def test_code_is_dedented() -> None:
    assert python_of("\n        if $A:\n            f()\n        ") == "if _hole_one_A:\n    f()"
