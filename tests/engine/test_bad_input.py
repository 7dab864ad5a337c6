"""A patch that is wrong is refused where it is written down, by the name of what is wrong."""

from __future__ import annotations

import pytest

import patchwork
from patchwork import InvalidPatch, Patch, at_start, one_of, optional, parameter, required

EDIT = required("f(x)").replace("g(x)")


def wrong(**changed: object) -> str:
    fields: dict[str, object] = {"name": "own.patch", "target": "lib.core:f", "edits": [EDIT], **changed}
    with pytest.raises(InvalidPatch) as caught:
        Patch(**fields)  # type: ignore[arg-type]
    assert len(patchwork.status()) == 0
    return str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "a..b", ".a", "a."])
def test_a_name_that_is_none(name: str) -> None:
    assert f"{name!r} is not a patch name" in wrong(name=name)


@pytest.mark.parametrize(
    "target", ["", "lib.core", "lib.core:", ":f", "lib core:f", "lib.core:f()", "lib.core:C.", "lib-core:f", "a:b:c"]
)
def test_a_target_that_is_none(target: str) -> None:
    text = wrong(target=target)
    assert f"own.patch: {target!r} is not a target" in text
    assert "write 'package.module:Class.method'" in text


def test_no_edits() -> None:
    assert "own.patch: a patch needs at least one edit" in wrong(edits=[])


@pytest.mark.parametrize("edit", ["f(x)", None, 5])
def test_an_edit_that_is_none(edit: object) -> None:
    assert f"{edit!r} is not an edit" in wrong(edits=[edit])


@pytest.mark.parametrize("text", ["4.57", "=>1", ">=1 <2", "latest"])
def test_a_version_range_that_is_not_pep_440(text: str) -> None:
    assert f"own.patch: versions['transformers'] = {text!r} is not a PEP 440 range" in wrong(versions={"transformers": text})


@pytest.mark.parametrize("pattern", ["f(", "if x:", "$x + 1", "f($X", "$$X", "x = = 1", "$X $Y", "f'{$X}'", "\0"])
@pytest.mark.parametrize("make", [required, optional])
def test_a_pattern_that_is_not_python(pattern: str, make: object) -> None:
    with pytest.raises(InvalidPatch, match="pattern is not Python") as caught:
        make(pattern)  # type: ignore[operator]
    assert pattern in str(caught.value) or pattern == "\0"
    assert "holes are $NAME and $$$NAME in capitals" in str(caught.value)


def test_a_pattern_that_is_not_python_names_its_line() -> None:
    with pytest.raises(InvalidPatch, match=r"\(line 2\)"):
        required("a = 1\nb = (")


@pytest.mark.parametrize("code", ["", "  \n ", "# only a comment", "\n# one\n# two\n"])
def test_code_that_is_none(code: str) -> None:
    for make in (required, required("f(x)").replace, required("f(x)").insert_before, at_start):
        with pytest.raises(InvalidPatch, match=r"is empty|holds no code"):
            make(code)
    assert "fixed_when" in wrong(fixed_when=code)


def test_code_of_an_edit_that_is_not_python() -> None:
    for action in ("replace", "insert_before", "insert_after"):
        with pytest.raises(InvalidPatch, match=f"{action} is not Python"):
            getattr(required("f(x)"), action)("x = (")
    with pytest.raises(InvalidPatch, match="set_argument is not Python"):
        required("f(x)").set_argument("k", "1 +")
    with pytest.raises(InvalidPatch, match="at_start is not Python"):
        at_start("return return")
    assert "fixed_when is not Python" in wrong(fixed_when="f(")


def test_a_hole_used_but_never_captured() -> None:
    with pytest.raises(InvalidPatch, match=r"replace uses \$\$\$REST, \$Y, which the pattern never captures") as caught:
        required("f($X)").replace("g($X, $Y, $$$REST)")
    assert "captures $X" in str(caught.value)
    with pytest.raises(InvalidPatch, match=r"uses \$X"):
        required("f($$$X)").replace("g($X)")
    with pytest.raises(InvalidPatch, match=r"captures nothing"):
        required("f()").insert_before("g($X)")
    with pytest.raises(InvalidPatch, match="nothing captures its holes"):
        at_start("f($X)")
    with pytest.raises(InvalidPatch, match="nothing captures its holes"):
        parameter("k", default="$X")


def test_a_dollar_in_a_string_is_no_hole() -> None:
    required("f()").replace("g('$X')  # $Y")


@pytest.mark.parametrize("count", [{"count": 0}, {"count": -1}, {"at_least": 0}, {"count": 1, "at_least": 1}])
def test_a_count_that_cannot_be(count: dict[str, int]) -> None:
    with pytest.raises(InvalidPatch, match=r"count= or at_least="):
        required("f(x)", **count)


def test_one_of_takes_two_edits_or_more() -> None:
    for edits in ([], [EDIT], [EDIT, required("f(x)")], [EDIT, "g(x)"]):
        with pytest.raises(InvalidPatch, match="one_of takes two or more edits"):
            one_of(*edits)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "class", "None"])
def test_a_parameter_or_argument_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidPatch, match="is not a parameter name"):
        parameter(name, default="1")
    with pytest.raises(InvalidPatch, match="is not an argument name"):
        required("f(x)").set_argument(name, "1")


def test_a_default_that_is_not_an_expression() -> None:
    for default in ("x = 1", "return", "1 +", ""):
        with pytest.raises(InvalidPatch, match="parameter default"):
            parameter("k", default=default)


@pytest.mark.parametrize("edits", [EDIT, required("f(x)"), 5, None])
def test_edits_that_are_no_list(edits: object) -> None:
    assert "own.patch: edits is no list" in wrong(edits=edits)
