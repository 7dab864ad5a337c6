"""What a pattern matches, and what it does not."""

from __future__ import annotations

import ast
import textwrap

import pytest

from patchwork.engine.pattern import Match, find, same_code, shape, tells


def matches(pattern: str, body: str) -> list[Match]:
    function = ast.parse("async def f(self, *args, **kwargs):\n" + textwrap.indent(textwrap.dedent(body), "    ")).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    return find(pattern, function)


def captured(pattern: str, body: str) -> dict[str, str]:
    [match] = matches(pattern, body)
    return {hole: text(value) for hole, value in match.bindings.items()}


def text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(text(item) for item in value)
    return ast.unparse(value) if isinstance(value, ast.AST) else str(value)


def test_quotes_parentheses_line_breaks_and_comments_do_not_matter() -> None:
    body = """
    x = foo(
        ("a"),  # why
        (b +
         c),
    )
    """
    assert len(matches("foo('a', b + c)", body)) == 1


def test_number_spelling_does_not_matter_but_type_does() -> None:
    assert len(matches("x = 0x10", "x = 16")) == 1
    assert matches("x = 1", "x = 1.0") == []
    assert matches("x = 1", "x = True") == []
    assert matches("x = 'a'", "x = b'a'") == []
    assert matches("x = 0.0", "x = -0.0") == []


def test_operand_order_matters() -> None:
    assert matches("a == b", "x = b == a") == []
    assert matches("a + b", "x = b + a") == []


def test_not_a_in_b_is_not_a_not_in_b() -> None:
    assert matches("not a in b", "x = a not in b") == []
    assert matches("a not in b", "x = not a in b") == []
    assert len(matches("not a in b", "x = not (a in b)")) == 1


def test_keyword_order_does_not_matter() -> None:
    assert len(matches("f(a, x=1, y=2)", "f(a, y=2, x=1)")) == 1
    assert matches("f(a, x=1, y=2)", "f(a, x=2, y=1)") == []


def test_positional_order_matters() -> None:
    assert matches("f(a, b)", "f(b, a)") == []


def test_extra_arguments_do_not_match_without_a_hole_for_them() -> None:
    assert matches("f(a)", "f(a, b)") == []
    assert matches("f(a)", "f(a, b=1)") == []
    assert matches("f(a)", "f(a, **kwargs)") == []
    assert matches("f(a, b=1)", "f(a)") == []


def test_many_arguments_take_positionals_in_place_and_every_unlisted_keyword() -> None:
    assert captured("f(a, $$$ARGS, k=None)", "f(a, b, *c, d=1, k=None, **e)") == {"$$$ARGS": "b, *c, d=1, **e"}
    assert captured("f($$$ARGS, z)", "f(x, y, z)") == {"$$$ARGS": "x, y"}
    assert matches("f(a, $$$ARGS, k=None)", "f(a, b, k=0)") == []


def test_many_arguments_may_be_none() -> None:
    assert captured("f($$$ARGS)", "f()") == {"$$$ARGS": ""}
    assert captured("f(a, $$$ARGS)", "f(a)") == {"$$$ARGS": ""}


def test_many_elements_of_a_sequence() -> None:
    assert captured("[first, $$$REST]", "x = [first, b, c]") == {"$$$REST": "b, c"}
    assert captured("($$$HEAD, last)", "x = a, b, last") == {"$$$HEAD": "a, b"}


def test_many_statements() -> None:
    body = """
    if ready:
        a()
        b()
    """
    assert captured("if ready:\n    $$$BODY", body) == {"$$$BODY": "a(), b()"}
    assert captured("if ready:\n    a()\n    $$$REST", body) == {"$$$REST": "b()"}


def test_many_statements_between_two_take_the_nearest_end() -> None:
    found = matches("begin()\n$$$MID\nend()", "begin()\nx = 1\nend()\ny = 2\nend()")
    assert [len(match.nodes) for match in found] == [3]


def test_a_hole_twice_must_hold_equal_code() -> None:
    assert captured("$X = $X.to(d)", "a[0] = a[ 0 ].to(d)") == {"$X": "a[0]"}
    assert matches("$X = $X.to(d)", "a = b.to(d)") == []


def test_a_hole_as_name_and_as_identifier_is_the_same_code() -> None:
    assert captured("self.$NAME = $NAME", "self.scale = scale\nself.bias = scale") == {"$NAME": "scale"}
    assert captured("f($N=$N)", "f(mask=mask)") == {"$N": "mask"}


def test_many_arguments_twice_must_hold_equal_code_keywords_included() -> None:
    assert len(matches("f($$$A) + g($$$A)", "x = f(1, k=2, j=3) + g(1, j=3, k=2)")) == 1
    assert matches("f($$$A) + g($$$A)", "x = f(1, k=2) + g(1, k=3)") == []
    assert matches("f($$$A) + g($$$A)", "x = f(1) + g(1, k=3)") == []


def test_a_hole_whose_name_begins_with_an_underscore_is_free() -> None:
    assert len(matches("f($_, $_)", "f(a, b)")) == 1
    assert len(matches("f($$$_) + g($$$_)", "x = f(1) + g(2, k=3)")) == 1


def test_a_hole_stands_for_an_attribute_a_keyword_and_an_assignment_target() -> None:
    assert captured("self.$FN(x)", "self.conv1d_fn(x)") == {"$FN": "conv1d_fn"}
    assert captured("f($K=None)", "f(seq_idx=None)") == {"$K": "seq_idx"}
    assert captured("$T = f(x)", "a.b[0] = f(x)") == {"$T": "a.b[0]"}
    assert captured("for $I in y:\n    pass", "for i, j in y:\n    pass") == {"$I": "(i, j)"}
    assert captured("except_($E)", "except_(err)") == {"$E": "err"}
    assert captured("from $M import x", "from torch import x") == {"$M": "torch"}
    assert captured("lambda $P: $P + 1", "g = lambda q: q + 1") == {"$P": "q"}
    assert captured("def $N(x):\n    return x", "def g(x):\n    return x") == {"$N": "g"}


def test_an_expression_hole_is_one_expression() -> None:
    assert captured("f($X)", "f(a if b else c)") == {"$X": "a if b else c"}
    assert matches("f($X)", "f(a, b)") == []
    assert matches("f($X)", "f(*rest)") == []
    assert captured("f(*$X)", "f(*rest)") == {"$X": "rest"}
    assert captured("a[$I]", "x = a[1:2]") == {"$I": "1:2"}


def test_a_keyword_hole_leaves_the_keywords_that_are_written_out() -> None:
    assert captured("f($K=$V, x=1)", "f(x=1, y=2)") == {"$K": "y", "$V": "2"}


def test_a_dollar_in_a_string_or_comment_is_literal() -> None:
    assert len(matches("log('costs $X')", "log('costs $X')")) == 1
    assert matches("log('costs $X')", "log('costs 5')") == []
    assert len(matches("log(r'\\d$X', '''$$$A''')  # not $A hole", "log('\\\\d$X', '$$$A')")) == 1


def test_an_absent_else_must_be_absent() -> None:
    assert matches("if a:\n    b()", "if a:\n    b()\nelse:\n    c()") == []
    assert len(matches("if a:\n    b()\nelse:\n    $$$REST", "if a:\n    b()\nelse:\n    c()")) == 1
    assert matches("for i in a:\n    b()", "for i in a:\n    b()\nelse:\n    c()") == []
    assert matches("try:\n    a()\nexcept E:\n    b()", "try:\n    a()\nexcept E:\n    b()\nfinally:\n    c()") == []


def test_an_absent_decorator_annotation_or_default_must_be_absent() -> None:
    assert matches("def g(x):\n    return x", "@once\ndef g(x):\n    return x") == []
    assert matches("def g(x):\n    return x", "def g(x: int):\n    return x") == []
    assert matches("def g(x):\n    return x", "def g(x=1):\n    return x") == []


def test_an_expression_is_found_wherever_it_stands() -> None:
    body = """
    def inner(y=foo(1)):
        return [foo(1) for _ in y if foo(1)]
    with foo(1):
        match y:
            case 1 if foo(1):
                pass
    return f"{foo(1)}"
    """
    assert len(matches("foo(1)", body)) == 6


def test_statements_are_found_in_every_kind_of_block() -> None:
    body = """
    for i in a:
        s()
    else:
        s()
    while a:
        s()
    try:
        s()
    except E:
        s()
    else:
        s()
    finally:
        s()
    with a:
        s()
    match a:
        case 1:
            s()
    class C:
        def m(self):
            s()
    if a:
        s()
    elif b:
        s()
    """
    assert len(matches("s()\n$$$_NONE", body)) == 12
    assert len(matches("s()", body)) == 12


def test_matches_come_in_the_order_of_the_text() -> None:
    found = matches("f($X)", "if f(1):\n    f(2)\nf(3)")
    assert [text(match.bindings["$X"]) for match in found] == ["1", "2", "3"]
    assert [match.line for match in found] == [2, 3, 4]


def test_consecutive_statements_must_be_neighbours() -> None:
    assert len(matches("a = 1\nb = 2", "a = 1\n\n# why\nb = 2")) == 1
    assert matches("a = 1\nb = 2", "a = 1\nc = 3\nb = 2") == []


def test_a_statement_is_not_an_expression() -> None:
    assert matches("x = f(a)", "y = (x := f(a))") == []
    assert matches("return f(a)", "await f(a)") == []


def test_async_and_sync_forms_differ() -> None:
    assert matches("for x in y:\n    pass", "async for x in y:\n    pass") == []
    assert matches("f()", "await g()") == []


def test_assignment_and_annotated_or_augmented_assignment_differ() -> None:
    assert matches("x = 1", "x: int = 1") == []
    assert matches("x = x + 1", "x += 1") == []


def test_shape_is_the_same_for_reading_and_for_assigning() -> None:
    [first, second] = ast.parse("a.b[0] = 1\na.b[0]").body
    assert shape(first.targets[0]) == shape(second.value)  # type: ignore[attr-defined]
    assert same_code(first.targets[0], second.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "pattern", ["x", "$X", "None", "'text'", "pass", "return None", "return $X", "not $X", "$A + $B", "True"]
)
def test_code_that_stands_in_many_a_function_tells_nothing(pattern: str) -> None:
    assert not tells(pattern)


@pytest.mark.parametrize("pattern", ["f($X)", "$X.float()", "x = $Y", "$X + 1", "g($$$A, k=$V)", "return x", "import a"])
def test_code_that_names_something_tells(pattern: str) -> None:
    assert tells(pattern)
