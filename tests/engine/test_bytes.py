"""Bytes that no edit touches stay as they were, whatever the file's encoding, line endings and white space."""

from __future__ import annotations

import ast

import pytest

from patchwork import InvalidResult, Patch, SourceUnavailable, at_start, one_of, optional, parameter, required, rewrite


def patch(*edits: object) -> Patch:
    return Patch(name="own.patch", target="lib.core:f", edits=edits)  # type: ignore[arg-type]


TWO_LINES = patch(required("g(x)").insert_before("if x:\n    h(x)"))


def untouched(before: bytes, after: bytes, added: bytes) -> None:
    """`after` is `before` with `added` put in at one place."""
    assert len(after) == len(before) + len(added)
    at = after.index(added)
    assert after[:at] + after[at + len(added) :] == before


def test_crlf_lines_get_crlf_lines() -> None:
    before = b"def f(x):\r\n    y = 1  \r\n    g(x)\r\n    return y\r\n"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\r\n        h(x)\r\n")


def test_crlf_in_every_edit() -> None:
    before = b"def f(x):\r\n    g(\r\n        x,\r\n    )\r\n    if x: return (x\r\n        + 1)\r\n    a(); b()\r\n"
    edits = [
        required("g($A)").set_argument("k", "[\n    1,\n]"),
        required("$A + 1").replace("call(\n    $A,\n)"),
        required("b()").insert_after('text = """one\ntwo"""'),
        at_start("s()\nt()"),
        parameter("y", default="(\n    1)"),
    ]
    after = rewrite(before, patch(*edits)).source
    assert b"\n" in after
    assert after.count(b"\n") == after.count(b"\r\n") == after.count(b"\r")
    constants = [node.value for node in ast.walk(ast.parse(after)) if isinstance(node, ast.Constant)]
    assert "one\ntwo" in constants


def test_the_first_line_ending_of_a_mixed_file_decides() -> None:
    before = b"import a\r\ndef f(x):\n    g(x)\n    return x\r\n"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\r\n        h(x)\r\n")


def test_cr_only_files_are_right() -> None:
    before = b"import a\rdef f(x):\r    g(x)\r    return x\r"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\r        h(x)\r")


def test_tabs() -> None:
    before = b"def f(x):\n\tif x:\n\t\tg(x)\n\treturn x\n"
    after = rewrite(before, TWO_LINES).source
    untouched(before, after, b"\t\tif x:\n\t\t\th(x)\n")
    ast.parse(after)


def test_tabs_in_lines_that_are_written_out() -> None:
    after = rewrite(b"def f(x):\n\tif x: g(x); y = 1\n\treturn x\n", patch(required("g(x)").insert_before("h(x)"))).source
    assert after == b"def f(x):\n\tif x:\n\t\th(x)\n\t\tg(x)\n\t\ty = 1\n\treturn x\n"


def test_inserted_code_takes_the_indentation_of_the_file_but_for_its_strings() -> None:
    code = 'if x:\n    y = """a\n    b"""\n    match y:\n        case _:\n            h(\n                y,\n            )'
    edit = required("g(x)").insert_before(code)
    after = rewrite(b"def f(x):\n\tg(x)\n", patch(edit)).source
    added = b'\tif x:\n\t\ty = """a\n    b"""\n\t\tmatch y:\n\t\t\tcase _:\n\t\t\t\th(\n\t\t\t\t\ty,\n\t\t\t\t)\n'
    untouched(b"def f(x):\n\tg(x)\n", after, added)


def test_a_one_line_function_is_written_out_in_the_indentation_of_the_file() -> None:
    before = b"def e():\n\tpass\ndef f(x): g(x)\n"
    assert rewrite(before, TWO_LINES).source == b"def e():\n\tpass\ndef f(x):\n\tif x:\n\t\th(x)\n\tg(x)\n"


def test_a_captured_block_keeps_its_own_indentation() -> None:
    before = b"def f(x):\n  g(x)\n  if x:\n    if y:\n      h()\n"
    edit = required("g(x)\nif x:\n    $$$B").replace("if z:\n    g(x)\n    if x:\n        $$$B")
    after = rewrite(before, patch(edit)).source
    assert after == b"def f(x):\n  if z:\n    g(x)\n    if x:\n      if y:\n        h()\n"


def test_byte_order_mark() -> None:
    before = b"\xef\xbb\xbfdef f(x):\n    g(x)\n"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


def test_latin_1() -> None:
    before = "# -*- coding: latin-1 -*-\ndef f(x):\n    é = 'ü'; g(x)  # ß\n".encode("latin-1")
    after = rewrite(before, patch(required("g($A)").replace("h($A)"))).source
    assert after == before.replace(b"g(x)", b"h(x)")


def test_a_character_that_the_encoding_lacks_is_refused() -> None:
    before = "# coding: latin-1\ndef f(x):\n    g('ü')\n".encode("latin-1")
    with pytest.raises(InvalidResult, match="cannot hold '…'") as caught:
        rewrite(before, patch(required("g($A)").replace("g('…')")))
    assert "iso8859-1" in str(caught.value)


def test_bytes_that_do_not_fit_their_encoding_are_refused() -> None:
    with pytest.raises(SourceUnavailable, match="cannot be decoded"):
        rewrite(b"def f(x):\n    g('\xff')\n", TWO_LINES)
    with pytest.raises(SourceUnavailable, match="cannot be decoded"):
        rewrite(b"# coding: no-such-thing\ndef f(x):\n    g(x)\n", TWO_LINES)


def test_form_feed_between_functions_and_inside() -> None:
    before = b"x = 1\n\x0c\ndef e(): pass\n\x0c\ndef f(x):\n    y = 1\n\x0c\n    g(x)\n    return y\n"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


def test_form_feed_before_code_on_a_line() -> None:
    before = b"x = 1\n\x0cdef f(x):\n    y = 1\n    g(x)\n    return y\n"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\x1e"])
def test_other_line_separators_inside_a_string(separator: str) -> None:
    before = f"def f(x):\n    y = 'a{separator}b', '''{separator}\n{separator}'''; z = 1\n    g(x)\n    return y\n".encode()
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


def test_u2028_on_the_line_of_the_edit() -> None:
    before = "def f(x):\n    y = 'ä\u2028😀', g(x), 'ü'\n".encode()
    done = rewrite(before, patch(required("g($A)").set_argument("k", "'\u2028'")))
    assert done.source == before.replace(b"g(x)", "g(x, k='\u2028')".encode())
    assert done.edits[0].line == 2
    assert len(done.diff.split("\n")) == 6


def test_wide_characters_before_the_edit_on_its_line() -> None:
    before = "def f(x):\n    return '😀ä', g('ü', x), 'é'\n"
    after = rewrite(before, patch(required("g($A, x)").replace("h($A)"))).source
    assert after == "def f(x):\n    return '😀ä', h('ü'), 'é'\n"


def test_no_final_newline() -> None:
    for ending, comment in [("", ""), ("", "  # end"), ("   ", "")]:
        before = f"def f(x):\n    g(x){comment}{ending}".encode()
        after = rewrite(before, patch(required("g(x)").insert_after("h(x)\nk(x)"))).source
        assert after == before + b"\n    h(x)\n    k(x)"
    assert rewrite(b"def f(x):\n    g(x)", TWO_LINES).source == b"def f(x):\n    if x:\n        h(x)\n    g(x)"
    assert rewrite(b"def f(x):\n    a()\n    g(x)", patch(required("g(x)").remove())).source.rstrip() == b"def f(x):\n    a()"


def test_a_string_over_several_lines_keeps_its_value() -> None:
    before = b'def f(x):\n    if x:\n        y = """a\n  b\n\t\n            c   \n"""; g(x)\n    return y\n'
    after = rewrite(before, TWO_LINES).source
    assert strings(after) == strings(before)
    assert b"h(x)" in after


def test_a_string_over_several_lines_in_a_captured_block_keeps_its_value() -> None:
    body = b'        y = """a\n  b\n            c"""\n        z = f"""{x}\n   d"""\n        g(x)\n'
    before = b"def f(x):\n    if x:\n" + body + b"    return y\n"
    change = required("if x:\n    $$$BODY").replace("for _ in x:\n    if _:\n        $$$BODY")
    after = rewrite(before, patch(change)).source
    assert strings(after) == strings(before)


def strings(source: bytes) -> list[object]:
    return [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_trailing_white_space_and_blank_lines_stay() -> None:
    before = b"def f(x):   \n\n    y = 1  \n   \n    g(x)   \n\n\n    return y\n   "
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


def test_backslash_continuations_stay() -> None:
    before = b"def f(x):\n    y = 1 + \\\n        2\n    g(x)\n    assert y, \\\n  x\n"
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


@pytest.mark.parametrize(
    "odd",
    [
        "(y): int = 1",
        "try:\n        pass\n    except  ValueError :\n        pass",
        "print ( x , end = '' )",
        "y = x if x else(1)",
        "y = not(x)",
        "for y in(1,2):pass",
        "y = [*x ,]",
        "async def g2(): await(x)",
        "with(x)as y:pass",
        "y = f'{x!r:>{10}}' 'b'",
        "lambda:(yield)",
    ],
)
def test_odd_but_valid_formatting_beside_the_edit_stays(odd: str) -> None:
    before = f"def f(x):\n    {odd}\n    g(x)\n".encode()
    untouched(before, rewrite(before, TWO_LINES).source, b"    if x:\n        h(x)\n")


def test_bytes_in_bytes_out_and_text_in_text_out() -> None:
    assert isinstance(rewrite(b"def f(x):\n    g(x)\n", TWO_LINES).source, bytes)
    assert isinstance(rewrite("def f(x):\n    g(x)\n", TWO_LINES).source, str)


def test_a_source_that_nothing_is_changed_in_stays_the_same_object() -> None:
    source = "def f(x):\n    a(); b()\n"
    done = rewrite(source, patch(optional("c()").insert_before("d()")))
    assert done.source is source
    native = rewrite(source, patch(one_of(required("d($X)").replace("a()"), required("e($X)").replace("a()"))))
    assert native.source is source
    assert native.states == {"own.patch": "native"}
