"""A patch that is wrong is refused where it is written down, by the name of what is wrong."""

from __future__ import annotations

import pytest

import patchwork
from patchwork import Case, InvalidPatch, InvalidResult, Patch, at_start, every, one_of, optional, parameter, required, rewrite
from patchwork.engine.patch import patches_in

EDIT = required("f(x)").replace("g(x)")


def wrong(**changed: object) -> str:
    fields: dict[str, object] = {"name": "own.patch", "target": "lib.core:f", "edits": [EDIT], **changed}
    with pytest.raises(InvalidPatch) as caught:
        Patch(**fields)  # type: ignore[arg-type]
    assert len(patchwork.status()) == 0
    return str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "a..b", ".a", "a.", "a.*", "a.b,c", "a b", "a.ü", "a.?", "a.b\n", None, 3, b"a.b"])
def test_a_name_that_is_none(name: object) -> None:
    assert f"{name!r} is not a patch name" in wrong(name=name)


@pytest.mark.parametrize(
    "target", ["", "lib.core", "lib.core:", ":f", "lib core:f", "lib.core:f()", "lib.core:C.", "lib-core:f", "a:b:c", None, 3]
)
def test_a_target_that_is_none(target: object) -> None:
    text = wrong(target=target)
    assert f"own.patch: {target!r} is not a target" in text
    assert "write 'package.module:Class.method'" in text


def test_no_edits() -> None:
    assert "own.patch: a patch needs at least one edit" in wrong(edits=[])


@pytest.mark.parametrize("edit", ["f(x)", None, 5])
def test_an_edit_that_is_none(edit: object) -> None:
    assert f"{edit!r} is not an edit" in wrong(edits=[edit])


@pytest.mark.parametrize("text", ["4.57", "=>1", ">=1 <2", "latest", 1, None])
def test_a_version_range_that_is_not_pep_440(text: object) -> None:
    assert f"own.patch: versions['transformers'] = {text!r} is not a PEP 440 range" in wrong(versions={"transformers": text})


@pytest.mark.parametrize("pattern", ["f(", "$x + 1", "f($X", "$$X", "x = = 1", "$X $Y", "\0"])
@pytest.mark.parametrize("make", [required, optional])
def test_a_pattern_that_is_not_python(pattern: str, make: object) -> None:
    with pytest.raises(InvalidPatch, match="pattern is not Python") as caught:
        make(pattern)  # type: ignore[operator]
    assert pattern in str(caught.value) or pattern == "\0"
    assert "holes are $NAME and $$$NAME in capitals" in str(caught.value)


@pytest.mark.parametrize("string", ["f'{$X}'", 'f"a{$X}b"', 'rf"""a {x} {$X!r} b"""'])
def test_a_hole_in_an_f_string_is_said_to_be_none(string: str) -> None:
    with pytest.raises(InvalidPatch, match="pattern is not Python") as caught:
        required(f"log({string})")
    assert f"a `$` in a string is a `$`, in an f-string too: write all of {string} as `$S`" in str(caught.value)
    with pytest.raises(InvalidPatch, match=r"write it with \.format\(\$X\)"):
        required("log($X)").replace(f"log({string})")
    with pytest.raises(InvalidPatch, match=r"holes are \$NAME"):
        required("log(f'$X', (")


@pytest.mark.parametrize("header", ["if x:", "for x in y:", "else:", "case 1:"])
def test_a_header_where_whole_statements_are_wanted(header: str) -> None:
    for make in (required, lambda code: required("f()", after=code), lambda code: required("f()", before=code)):
        with pytest.raises(InvalidPatch, match=r"is not Python") as caught:
            make(header)
        assert "a header alone counts only in inside=" in str(caught.value)


@pytest.mark.parametrize("header", ["else:", "elif x:", "except E:", "finally:", "match x:", "case 1:", "x = 1\nfor y in z:"])
def test_inside_says_which_headers_count(header: str) -> None:
    with pytest.raises(InvalidPatch, match="inside is not Python") as caught:
        required("f()", inside=header)
    assert "inside= takes the header of a def, class, if, for, while, with or try" in str(caught.value)
    assert "where: " + header.splitlines()[0] in str(caught.value)


@pytest.mark.parametrize("header", ["if x:\n    for y in z:", "if x:\n    pass\nelse:", "try:\n    pass\nexcept E:"])
def test_inside_takes_no_more_than_one_header(header: str) -> None:
    with pytest.raises(InvalidPatch, match="no header of one statement"):
        required("f()", inside=header)


def test_the_headers_that_inside_takes() -> None:
    for header in (
        "def f($X):",
        "class C:",
        "if x:",
        "for x in y:",
        "while x:",
        "with x as y:",
        "try:",
        "async for x in y:",
        "if (\n x):",
    ):
        required("f()", inside=header)


@pytest.mark.parametrize("deep", ["-" * 100_000 + "x", "x" + ".a" * 50_000, "+".join(["x"] * 400), "-" * 300 + "x"])
def test_a_pattern_that_is_nested_too_deeply_says_so(deep: str) -> None:
    for make in (required, required("f()").replace, lambda code: required("f()").set_argument("k", code), at_start):
        with pytest.raises(InvalidPatch, match="is nested too deeply for Python's recursion limit") as caught:
            make(deep)
        assert len(str(caught.value)) < 1000


def test_what_else_is_wrong_with_deep_code_is_told_first() -> None:
    deep = "-" * 100_000 + "x"
    with pytest.raises(InvalidPatch, match="set_argument is not Python"):
        required("f()").set_argument("k", f"x = {deep}")
    with pytest.raises(InvalidPatch, match="inside is not Python"):
        required("f()", inside=f"if {deep}:")


def test_no_message_speaks_of_what_a_hole_is_called_inside() -> None:
    edit = required("if $T:\n    $$$B").replace("g($T, $$$B)")
    with pytest.raises(InvalidResult) as caught:
        rewrite("def f(x):\n    if x:\n        y()\n", Patch("own.patch", "lib:f", [edit]))
    assert caught.value.where == "g($T, $$$B)"


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


@pytest.mark.parametrize("code", ["x = 1", "*x", "yield", "x; y", "x\ny", "return", "del x"])
def test_the_value_of_an_argument_is_one_expression(code: str) -> None:
    with pytest.raises(InvalidPatch, match="set_argument must be one expression"):
        required("f(x)").set_argument("k", code)
    with pytest.raises(InvalidPatch, match="parameter default must be one expression"):
        parameter("k", default=code)


def test_a_dollar_in_a_string_is_no_hole() -> None:
    required("f()").replace("g('$X')  # $Y")


@pytest.mark.parametrize("count", [{"count": 0}, {"count": -1}, {"at_least": 0}, {"count": 1, "at_least": 1}])
def test_a_count_that_cannot_be(count: dict[str, int]) -> None:
    with pytest.raises(InvalidPatch, match=r"count= or at_least="):
        required("f(x)", **count)


@pytest.mark.parametrize("count", ["1", 1.5, True, [1]])
@pytest.mark.parametrize("name", ["count", "at_least"])
@pytest.mark.parametrize("make", [required, optional])
def test_a_count_that_is_no_whole_number(count: object, name: str, make: object) -> None:
    with pytest.raises(InvalidPatch, match=f"{name}= is .*, not a whole number"):
        make("f(x)", **{name: count})  # type: ignore[operator]


@pytest.mark.parametrize("code", [None, 3, b"f(x)", ["f(x)"]])
def test_code_that_is_no_string(code: object) -> None:
    anchor = required("f(x)")
    for make, what in (
        (required, "pattern"),
        (optional, "pattern"),
        (anchor.replace, "replace"),
        (anchor.insert_before, "insert_before"),
        (lambda given: anchor.set_argument("k", given), "set_argument"),
        (lambda given: parameter("k", default=given), "parameter default"),
        (at_start, "at_start"),
        (every, "every"),
        (lambda given: Case(before=given), "Case: before"),
    ):
        with pytest.raises(InvalidPatch) as caught:
            make(code)  # type: ignore[arg-type]
        assert str(caught.value).startswith(f"{what} is {code!r}, not a string")
    for name in ("inside", "after", "before"):
        with pytest.raises(InvalidPatch, match=rf"^{name} is 3, not a string"):
            required("f(x)", **{name: 3})  # type: ignore[arg-type]
    with pytest.raises(InvalidPatch, match="accounted_by is no list: 3"):
        every("x", accounted_by=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"versions": "trl>=1"}, "versions is 'trl>=1', not ranges by distribution"),
        ({"versions": ["trl"]}, "versions is ['trl'], not ranges by distribution"),
        ({"versions": {"trl": 1}}, "versions['trl'] = 1 is not a PEP 440 range"),
        ({"versions": {"trl>=1": ""}}, "versions: 'trl>=1' is not a distribution"),
        ({"versions": {3: ">=1"}}, "versions: 3 is not a distribution"),
        ({"cases": Case()}, "cases is no list"),
        ({"cases": "x"}, "cases is no list"),
        ({"cases": ["x"]}, "'x' is not a case"),
        ({"reason": 3}, "reason is 3, not a string"),
        ({"fixed_when": 3}, "fixed_when is 3, not a string"),
        ({"before": 3}, "before is no list: 3"),
        ({"after": [3]}, "after is 3, not a string"),
        ({"before": b"a"}, "before is no list"),
        ({"before": "own.patch"}, "before= names the patch itself"),
        ({"after": ["other.patch", "own.patch"]}, "after= names the patch itself"),
    ],
)
def test_a_field_of_the_wrong_kind(fields: dict[str, object], said: str) -> None:
    assert said in wrong(**fields)


@pytest.mark.parametrize("pattern", ["$X", "$$$X", "($X)", " $X  # why", "$X\n$$$Y"])
def test_fixed_when_that_matches_anything(pattern: str) -> None:
    assert "fixed_when: a hole alone matches everything" in wrong(fixed_when=pattern)
    with pytest.raises(InvalidPatch, match="every: a hole alone matches everything"):
        every(pattern)


def test_what_is_no_patch() -> None:
    one = Patch(name="own.patch", target="lib.core:f", edits=[EDIT])
    assert patches_in(one) == patches_in(iter([one])) == (one,)
    for value in (None, 3, [3], "own.patch", [one, None]):
        with pytest.raises(InvalidPatch, match="give a Patch, or a list of them"):
            patches_in(value)


def test_one_of_takes_two_edits_or_more() -> None:
    for edits in ([], [EDIT], [EDIT, required("f(x)")], [EDIT, "g(x)"]):
        with pytest.raises(InvalidPatch, match="one_of takes two or more edits"):
            one_of(*edits)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "class", "None", None, 3])
def test_a_parameter_or_argument_name_that_is_none(name: object) -> None:
    with pytest.raises(InvalidPatch, match="is not a parameter name"):
        parameter(name, default="1")  # type: ignore[arg-type]
    with pytest.raises(InvalidPatch, match="is not an argument name"):
        required("f(x)").set_argument(name, "1")  # type: ignore[arg-type]


def test_a_default_that_is_not_an_expression() -> None:
    for default in ("x = 1", "return", "1 +", ""):
        with pytest.raises(InvalidPatch, match="parameter default"):
            parameter("k", default=default)


@pytest.mark.parametrize("edits", [EDIT, required("f(x)"), 5, None, "f(x)", {EDIT: 1}])
def test_edits_that_are_no_list(edits: object) -> None:
    assert "own.patch: edits is no list" in wrong(edits=edits)
