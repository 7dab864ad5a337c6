"""What each edit makes of a source, and which sources are refused."""

from __future__ import annotations

import textwrap

import pytest

from patchwork import (
    AnchorAmbiguous,
    AnchorMissing,
    AnchorMoved,
    InvalidResult,
    PartlyNative,
    Patch,
    PatchConflict,
    Rewrite,
    SourceUnavailable,
    TargetMissing,
    at_start,
    one_of,
    optional,
    parameter,
    required,
    rewrite,
)


def patch(*edits: object, name: str = "own.patch", of: str = "f", **more: object) -> Patch:
    return Patch(name=name, target=f"lib.core:{of}", edits=edits, **more)  # type: ignore[arg-type]


def code(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def check(before: str, after: str, *edits: object, **more: object) -> Rewrite[str]:
    """The edits make `after` of `before`, and nothing more of `after`."""
    done = rewrite(code(before), patch(*edits, **more))
    assert done.source == code(after)
    assert done.states == {"own.patch": "applied"}
    return done


def refused(kind: type[Exception], before: str, *edits: object, **more: object) -> str:
    with pytest.raises(kind) as caught:
        rewrite(code(before), patch(*edits, **more))
    assert type(caught.value) is kind
    assert caught.value.patch == "own.patch"  # type: ignore[attr-defined]
    return str(caught.value)


# Each edit


def test_replace_an_expression() -> None:
    before = """
    def f(x):
        y = g(x)  # why
        return y
    """
    after = """
    def f(x):
        y = h(x, 1)  # why
        return y
    """
    done = check(before, after, required("g($X)").replace("h($X, 1)"))
    assert [(e.patch, e.action, e.line, e.anchor) for e in done.edits] == [("own.patch", "replace", 2, "g($X)")]
    assert done.diff.splitlines()[-4:] == [" def f(x):", "-    y = g(x)  # why", "+    y = h(x, 1)  # why", "     return y"]


def test_replace_statements() -> None:
    before = """
    def f(x):
        # before
        y = g(x)
        z = y + 1  # last
        # after
        return z
    """
    after = """
    def f(x):
        # before
        if x:
            z = g(x)
        else:
            z = None  # last
        # after
        return z
    """
    check(before, after, required("$Y = g(x)\n$Z = $Y + 1").replace("if x:\n    $Z = g(x)\nelse:\n    $Z = None"))


def test_replace_an_expression_statement_by_statements() -> None:
    check(
        "def f(x):\n    g(x)\n    return x\n",
        "def f(x):\n    if x:\n        h(x)\n    return x\n",
        required("g($X)").replace("if $X:\n    h($X)"),
    )


def test_replace_a_part_of_a_statement_by_statements_is_refused() -> None:
    text = refused(InvalidResult, "def f(x):\n    return g(x)\n", required("g(x)").replace("if x:\n    h(x)"))
    assert "cannot replace an expression that is part of a statement by statements" in text
    assert "line 2: return g(x)" in text


def test_insert_before_a_statement() -> None:
    before = """
    def f(x):
        # of the call
        g(x)
        return x
    """
    after = """
    def f(x):
        # of the call
        if x:
            x = 1
        g(x)
        return x
    """
    check(before, after, required("g(x)").insert_before("if x:\n    x = 1"))


def test_insert_after_a_statement() -> None:
    check(
        "def f(x):\n    g(x)  # why\n    return x\n",
        "def f(x):\n    g(x)  # why\n    h(x)\n    return x\n",
        required("g($X)").insert_after("h($X)"),
    )


def test_insert_around_an_expression_takes_the_statement_that_holds_it() -> None:
    before = """
    def f(x):
        for i in x:
            y = [
                g(i),
                1,
            ]
        return y
    """
    after = """
    def f(x):
        for i in x:
            before(i)
            y = [
                g(i),
                1,
            ]
            after(i)
        return y
    """
    check(before, after, required("g($X)").insert_before("before($X)"), required("g($X)").insert_after("after($X)"))


def test_insert_after_a_compound_statement_comes_below_its_block() -> None:
    check(
        "def f(x):\n    if x:\n        g()\n    else:\n        h()\n    return x\n",
        "def f(x):\n    if x:\n        g()\n    else:\n        h()\n    k()\n    return x\n",
        required("if x:\n    g()\nelse:\n    h()").insert_after("k()"),
    )


def test_insert_before_a_decorated_definition_comes_above_its_decorators() -> None:
    check(
        "def f(x):\n    @once\n    def g():\n        pass\n    return g\n",
        "def f(x):\n    h()\n    @once\n    def g():\n        pass\n    return g\n",
        required("@once\ndef g():\n    pass").insert_before("h()"),
    )


def test_remove_a_statement_keeps_the_comments_around_it() -> None:
    before = """
    def f(x):
        # above
        g(x)  # beside
        # below
        return x
    """
    after = """
    def f(x):
        # above
        # beside
        # below
        return x
    """
    check(before, after, required("g(x)").remove())


def test_remove_takes_the_whole_line() -> None:
    check("def f(x):\n    g(x)\n    return x\n", "def f(x):\n    return x\n", required("g(x)").remove())


def test_remove_the_only_statement_of_a_block_leaves_pass() -> None:
    check(
        "def f(x):\n    if x:\n        # why\n        g(x)  # beside\n    return x\n",
        "def f(x):\n    if x:\n        # why\n        pass  # beside\n    return x\n",
        required("g(x)").remove(),
    )


def test_remove_a_part_of_a_statement_is_refused() -> None:
    text = refused(InvalidResult, "def f(x):\n    return g(x)\n", required("g(x)").remove())
    assert "cannot remove an expression that is part of a statement" in text


def test_set_argument_adds_a_keyword() -> None:
    for before, after in [
        ("g()", "g(k=v)"),
        ("g(a)", "g(a, k=v)"),
        ("g(a,)", "g(a, k=v)"),
        ("g(*a, **b)", "g(*a, **b, k=v)"),
        ("g(a)(b)", "g(a)(b, k=v)"),
        ("(g)(a)", "(g)(a, k=v)"),
        ("g(')', a[(0)])", "g(')', a[(0)], k=v)"),
    ]:
        check(
            f"def f(a, b):\n    return {before}\n", f"def f(a, b):\n    return {after}\n", required(before).set_argument("k", "v")
        )


def test_set_argument_takes_the_place_of_a_keyword_of_that_name() -> None:
    check(
        "def f(a):\n    return g(a, k=None, j=1)\n",
        "def f(a):\n    return g(a, k=a or 1, j=1)\n",
        required("g($$$A, k=None)").set_argument("k", "a or 1"),
    )


def test_set_argument_beside_a_lone_generator_puts_it_in_parentheses() -> None:
    check(
        "def f(a):\n    return sum(x for x in a)\n",
        "def f(a):\n    return sum((x for x in a), start=1)\n",
        required("sum($G)").set_argument("start", "1"),
    )
    check(
        "def f(a):\n    return sum((x for x in a))\n",
        "def f(a):\n    return sum((x for x in a), start=1)\n",
        required("sum($G)").set_argument("start", "1"),
    )


def test_set_argument_in_a_call_over_many_lines_with_comments() -> None:
    before = """
    def f(a):
        return g(
            a,  # first
            b=1,  # last
        )
    """
    after = """
    def f(a):
        return g(
            a,  # first
            b=1, k=2,  # last
        )
    """
    done = rewrite(code(before), patch(required("g($$$A)").set_argument("k", "2")))
    assert done.source.replace("k=2  # last", "k=2,  # last") == code(after)


def test_set_argument_with_a_tuple_or_generator_is_put_in_parentheses() -> None:
    check("def f(a):\n    g(a)\n", "def f(a):\n    g(a, k=(1, 2))\n", required("g(a)").set_argument("k", "1, 2"))
    check("def f(a):\n    g(k=0)\n", "def f(a):\n    g(k=(1, 2))\n", required("g(k=0)").set_argument("k", "1, 2"))


def test_set_argument_of_a_pattern_that_is_no_call_is_refused() -> None:
    assert "needs a pattern that is a call" in refused(
        InvalidResult, "def f(a):\n    x = a\n", required("x = a").set_argument("k", "1")
    )


def test_at_start_goes_below_the_docstring() -> None:
    check('def f(x):\n    """Doc."""\n    return x\n', 'def f(x):\n    """Doc."""\n    g()\n    return x\n', at_start("g()"))
    check("def f(x):\n    return x\n", "def f(x):\n    g()\n    return x\n", at_start("g()"))
    check('def f(x):\n    """Doc."""\n', 'def f(x):\n    """Doc."""\n    g()\n', at_start("g()"))
    check("def f(x):\n    ...\n", "def f(x):\n    g()\n    ...\n", at_start("g()"))


def test_parameter_is_keyword_only() -> None:
    for before, after in [
        ("", "*, y=5"),
        ("x", "x, *, y=5"),
        ("x,", "x, *, y=5"),
        ("x, /", "x, /, *, y=5"),
        ("x, *, a", "x, *, a, y=5"),
        ("*args", "*args, y=5"),
        ("x, **kwargs", "x, *, y=5, **kwargs"),
        ("*args, **kwargs", "*args, y=5, **kwargs"),
        ("x=(1, 2), z: 'a(b' = ')'", "x=(1, 2), z: 'a(b' = ')', *, y=5"),
    ]:
        check(f"def f({before}) -> int:\n    return 1\n", f"def f({after}) -> int:\n    return 1\n", parameter("y", default="5"))


def test_two_parameters_share_one_star() -> None:
    both = [parameter("y", default="5"), parameter("z", default="6, 7")]
    check("def f():\n    return 1\n", "def f(*, y=5, z=(6, 7)):\n    return 1\n", *both)
    check("def f(x, **k):\n    return 1\n", "def f(x, *, y=5, z=(6, 7), **k):\n    return 1\n", *both)
    check("def f(x,):\n    return 1\n", "def f(x, *, y=5, z=(6, 7)):\n    return 1\n", *both)


def test_two_patches_may_each_add_a_parameter_to_one_function() -> None:
    one, two = (patch(parameter(name, default="None"), name=f"own.{name}") for name in "ab")
    assert rewrite("def f(x):\n    return 1\n", [one, two]).source == "def f(x, *, a=None, b=None):\n    return 1\n"


def test_two_patches_that_add_the_same_parameter_are_refused() -> None:
    one, two = (patch(parameter("a", default="None"), name=f"own.{name}") for name in "xy")
    with pytest.raises(PatchConflict, match=r"own\.x and own\.y add a there"):
        rewrite("def f(x):\n    return 1\n", [one, two])


SET_K, SET_L = required("g($$$A)").set_argument("k", "1"), required("g($$$A)").set_argument("l", "2")


@pytest.mark.parametrize(
    ("call", "done"),
    [
        ("g()", "g(k=1, l=2)"),
        ("g(a)", "g(a, k=1, l=2)"),
        ("g(a,)", "g(a, k=1, l=2)"),
        ("g(\n    a,\n    b,\n)", "g(\n    a,\n    b, k=1, l=2\n)"),
        ("g(a  # why\n)", "g(a, k=1, l=2  # why\n)"),
        ("g(x for x in a)", "g((x for x in a), k=1, l=2)"),
        ("g(*a, **b)", "g(*a, **b, k=1, l=2)"),
    ],
)
def test_two_edits_may_each_add_an_argument_to_one_call(call: str, done: str) -> None:
    for patches in ([patch(SET_K, SET_L)], [patch(SET_K, name="own.k"), patch(SET_L, name="own.l")]):
        assert rewrite(f"def f(a, b):\n    y = {call}\n", patches).source == f"def f(a, b):\n    y = {done}\n"


def test_two_patches_that_add_the_same_argument_conflict() -> None:
    for call in ("g(a)", "g()", "g(x for x in a)"):
        with pytest.raises(PatchConflict, match=r"own\.x and own\.y add k there"):
            rewrite(f"def f(a):\n    {call}\n", [patch(SET_K, name="own.x"), patch(SET_K, name="own.y")])
    text = refused(PatchConflict, "def f(a):\n    g(a)\n", SET_K, required("g(a)").set_argument("k", "2"))
    assert "two of its edits add k there" in text
    assert "exclude=" not in text


def test_an_argument_of_a_call_inside_a_generator_that_gets_parentheses_conflicts() -> None:
    inner = required("h($$$A)").set_argument("k", "1")
    text = refused(PatchConflict, "def f(a):\n    g(h(x for x in y) for y in a)\n", SET_L, inner)
    assert "change the same code" in text


def test_matches_of_one_anchor_that_lie_in_each_other_are_said_to() -> None:
    text = refused(PatchConflict, "def f():\n    g(g(g(1)))\n", required("g($X)", count=3).replace("h($X)"))
    assert "matches of one anchor lie in each other: g($X)" in text
    assert "exclude=" not in text


BLOCK = "def f(x):\n    if x:\n        a()\n        b()\n    c()\n"


@pytest.mark.parametrize("action", ["replace", "remove"])
@pytest.mark.parametrize("beside", ["a()", "b()"])
@pytest.mark.parametrize("insert", ["insert_before", "insert_after"])
def test_an_insert_inside_a_block_that_another_patch_takes_conflicts(action: str, beside: str, insert: str) -> None:
    whole = required("if x:\n    $$$B")
    takes = patch(whole.replace("z()") if action == "replace" else whole.remove(), name="own.takes")
    inserts = patch(getattr(required(beside), insert)("new()"), name="own.inserts")
    for patches in ([takes, inserts], [inserts, takes]):
        with pytest.raises(PatchConflict, match=r"own\.takes and own\.inserts change the same code"):
            rewrite(BLOCK, patches)


def test_an_insert_beside_what_another_patch_removes_is_made() -> None:
    for insert in ("insert_before", "insert_after"):
        patches = [patch(required("a()").remove(), name="own.a"), patch(getattr(required("a()"), insert)("new()"), name="own.b")]
        assert rewrite(BLOCK, patches).source == BLOCK.replace("a()", "new()")


def test_an_insert_beside_what_another_patch_replaces_is_made() -> None:
    takes = patch(required("a()\nb()").replace("z()"), name="own.takes")
    around = [
        patch(required("a()").insert_before("one()"), name="own.a"),
        patch(required("b()").insert_after("two()"), name="own.b"),
    ]
    done = rewrite(BLOCK, [takes, *around]).source
    assert done == "def f(x):\n    if x:\n        one()\n        z()\n        two()\n    c()\n"


def test_a_parameter_of_a_decorated_function_named_like_its_decorator() -> None:
    check("@f.f(1)\ndef f(x):\n    pass\n", "@f.f(1)\ndef f(x, *, y=5):\n    pass\n", parameter("y", default="5"))


# Code as it is written


def test_one_line_suites_are_written_out_where_that_is_needed() -> None:
    before = """
    def f(a, x):
        if a: return x  # why
        return None
    """
    after = """
    def f(a, x):
        if a:
            g(x)
            return x  # why
        return None
    """
    check(before, after, required("return x").insert_before("g(x)"))


def test_a_one_line_function_is_written_out() -> None:
    check("def f(x): return x\n", "def f(x):\n    g()\n    return x\n", at_start("g()"))


def test_an_expression_edit_leaves_a_one_line_suite_alone() -> None:
    check("def f(a): return g(a); pass\n", "def f(a): return h(a); pass\n", required("g(a)").replace("h(a)"))


def test_statements_joined_by_semicolons_are_written_out() -> None:
    before = """
    def f(x):
        a(); b(); c()  # end
        d(); e()
    """
    after = """
    def f(x):
        a()
        new()
        b()
        c()  # end
        d(); e()
    """
    check(before, after, required("b()").insert_before("new()"))


def test_one_of_the_statements_joined_by_semicolons_is_removed() -> None:
    check("def f(x):\n    a(); b(); c()\n", "def f(x):\n    a()\n    c()\n", required("b()").remove())


def test_a_trailing_semicolon() -> None:
    check("def f(x):\n    a();\n    b()\n", "def f(x):\n    a()\n    new()\n    b()\n", required("a()").insert_after("new()"))


def test_insert_before_the_test_of_an_elif_makes_it_an_else() -> None:
    before = """
    def f(a, b):
        if a:
            x()  # x
        # of b
        elif b(1):
            y()
        else:
            z()
        return a
    """
    after = """
    def f(a, b):
        if a:
            x()  # x
        # of b
        else:
            new()
            if b(1):
                y()
            else:
                z()
        return a
    """
    check(before, after, required("b(1)").insert_before("new()"))


def test_of_several_elifs_only_the_one_concerned_is_opened() -> None:
    chain = "def f(a):\n    if a:\n        x()\n" + "".join(f"    elif b({i}):\n        z()\n" for i in (1, 2, 3))
    after = chain.partition("    elif b(2)")[0] + "    else:\n        new()\n        if b(2):\n            z()\n"
    after += "        elif b(3):\n            z()\n"
    assert rewrite(chain, patch(required("b(2)").insert_before("new()"))).source == after


def test_a_chain_of_many_elifs_stays_flat() -> None:
    chain = "def f(a):\n    if a:\n        x()\n" + "".join(f"    elif b({i}):\n        y({i})\n" for i in range(100))
    done = rewrite(chain, patch(required("b(99)").insert_before("new()")))
    assert done.source.endswith("    else:\n        new()\n        if b(99):\n            y(99)\n")


def test_lines_that_would_be_indented_too_deeply_are_not_written_out() -> None:
    deep = "".join("    " * (depth + 1) + f"if a[{depth}]:\n" for depth in range(98)) + "    " * 99 + "if x: y()\n"
    text = refused(InvalidResult, f"def f(a, x):\n{deep}", required("y()").insert_before("new()"))
    assert "these lines cannot be written one statement a line: too many levels of indentation" in text


def test_insert_into_the_block_of_an_elif_leaves_it_an_elif() -> None:
    check(
        "def f(a, b):\n    if a:\n        x()\n    elif b:\n        y()\n",
        "def f(a, b):\n    if a:\n        x()\n    elif b:\n        new()\n        y()\n",
        required("y()").insert_before("new()"),
    )


def test_statements_joined_by_a_backslash_are_written_out() -> None:
    before = """
    def f(x):
        if x: \\
            return 1
        a(); \\
            b()
        return 2
    """
    after = """
    def f(x):
        if x:
            new()
            return 1
        a(); \\
            b()
        return 2
    """
    check(before, after, required("return 1").insert_before("new()"))
    done = rewrite(code(before), patch(required("b()").remove()))
    assert done.source.endswith("    a()\n    return 2\n")
    done = rewrite(code(before), patch(required("a()").insert_after("new()")))
    assert done.source.endswith("    a()\n    new()\n    b()\n    return 2\n")


def test_an_expression_in_an_f_string() -> None:
    before = 'def f(x):\n    return f"""\n  {g(x)} é {g(1)!r:>{g(2)}}""" f"g(x) {g(x)}"\n'
    after = 'def f(x):\n    return f"""\n  {h[x]} é {h[1]!r:>{h[2]}}""" f"g(x) {h[x]}"\n'
    check(before, after, required("g($X)", count=4).replace("h[$X]"))


def test_inserted_code_may_hold_a_string_over_several_lines() -> None:
    inserted = 'text = """one\n  two\n"""\nlog(text)'
    done = check(
        "def f(x):\n    if x:\n        g(x)\n",
        'def f(x):\n    if x:\n        text = """one\n  two\n"""\n        log(text)\n        g(x)\n',
        required("g(x)").insert_before(inserted),
    )
    names: dict[str, object] = {}
    exec(done.source.replace("log(text)", "return text"), names)
    assert names["f"](1) == "one\n  two\n"  # type: ignore[operator]


def test_a_captured_block_is_moved_to_another_indentation_with_its_comments_and_strings() -> None:
    before = '''
    def f(x):
        if x:
            # lead stays outside
            @once
            def g():
                return """a
        b"""
            # between
            h(
                1,
            )
        return x
    '''
    after = '''
    def f(x):
        with y:
            if x:
                @once
                def g():
                    return """a
        b"""
                # between
                h(
                    1,
                )
        return x
    '''
    check(before, after, required("if x:\n    $$$BODY").replace("with y:\n    if x:\n        $$$BODY"))


def test_an_empty_capture_takes_its_comma_along() -> None:
    check("def f():\n    g()\n", "def f():\n    h(1)\n", required("g($$$A)").replace("h(1, $$$A)"))
    check("def f():\n    g()\n", "def f():\n    h(1)\n", required("g($$$A)").replace("h($$$A, 1)"))
    check("def f():\n    g()\n", "def f():\n    h()\n", required("g($$$A)").replace("h($$$A)"))
    check("def f():\n    g()\n", "def f():\n    h(1, 2)\n", required("g($$$A)").replace("h(1, $$$A, 2)"))


def test_captured_arguments_keep_their_text() -> None:
    check(
        "def f(a):\n    g(a, 'x',  b = 1, *c, **d)\n",
        "def f(a):\n    h(a, 'x', *c, b = 1, **d)\n",
        required("g($$$A)").replace("h($$$A)"),
    )


# Precedence


@pytest.mark.parametrize(
    ("argument", "template", "result"),
    [
        ("a + b", "$X * 2", "(a + b) * 2"),
        ("a * b", "$X + 2", "a * b + 2"),
        ("a if b else c", "h($X)", "h(a if b else c)"),
        ("a if b else c", "$X.size", "(a if b else c).size"),
        ("lambda: 1", "$X()", "(lambda: 1)()"),
        ("a, b", "[$X]", "[(a, b)]"),
        ("-a", "$X ** 2", "(-a) ** 2"),
        ("a or b", "not $X", "not (a or b)"),
        ("a.b", "$X.c", "a.b.c"),
        ("1", "$X + $X", "1 + 1"),
    ],
)
def test_captured_code_keeps_its_meaning_with_fewest_parentheses(argument: str, template: str, result: str) -> None:
    call = f"g(({argument}))" if "," in argument else f"g({argument})"
    check(f"def f(a, b, c):\n    return {call}\n", f"def f(a, b, c):\n    return {result}\n", required("g($X)").replace(template))


def test_an_identifier_beside_does_not_cost_another_hole_its_parentheses() -> None:
    check("def f(a, b):\n    g(a + b, n)\n", "def f(a, b):\n    (a + b) * h.n\n", required("g($X, $N)").replace("$X * h.$N"))
    check("def f(a, b):\n    g(a, b)[1:2]\n", "def f(a, b):\n    h[1:2]\n", required("g(a, b)[$S]").replace("h[$S]"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("g(a) * 2", "(a + 1) * 2"),
        ("2 + g(a)", "2 + (a + 1)"),
        ("g(a) + 2", "a + 1 + 2"),
        ("g(a).b", "(a + 1).b"),
        ("h(g(a))", "h(a + 1)"),
        ("x[g(a)]", "x[a + 1]"),
        ("-g(a)", "-(a + 1)"),
        ("h(*g(a))", "h(*a + 1)"),
    ],
)
def test_a_replacement_keeps_its_meaning_where_it_stands(before: str, after: str) -> None:
    check(f"def f(a):\n    return {before}\n", f"def f(a):\n    return {after}\n", required("g($X)").replace("$X + 1"))


def test_a_replacement_beside_others_gets_parentheses_only_where_it_needs_them() -> None:
    check("def f(a):\n    return g(a) * h(g(a))\n", "def f(a):\n    return (a + 1) * h(a + 1)\n",
          required("g($X)", count=2).replace("$X + 1"))  # fmt: skip


def test_a_replacement_where_no_parentheses_can_stand() -> None:
    before = "def f(x):\n    match x:\n        case a.B(c):\n            return c\n"
    check(before, before.replace("a.B", "a.b.C"), required("a.B").replace("a.b.C"))


def test_a_captured_expression_over_several_lines_stays_valid() -> None:
    done = rewrite("def f(a, b):\n    y = (a +\n         b)\n    return y\n", patch(required("y = $V").replace("z = $V\ny = z")))
    names: dict[str, object] = {}
    exec(done.source, names)
    assert names["f"](1, 2) == 3  # type: ignore[operator]


def test_code_that_the_compiler_refuses_is_refused_here() -> None:
    assert "'break' outside loop" in refused(InvalidResult, "def f(x):\n    g(x)\n", required("g(x)").replace("break"))
    assert "is not Python" in refused(InvalidResult, "def f(x):\n    g(x) = 1\n".replace("g(x) = 1", "x[g(x)] = 1"),
                                      required("x[$I]").replace("h($I)"))  # fmt: skip


# Counts and conditions


def test_a_missing_anchor_names_the_nearest_statement_and_its_line() -> None:
    before = """
    def f(self, x):
        y = 1
        x = self.conv(x, seq_idx=None, activation="silu")
        return x
    """
    text = refused(AnchorMissing, before, required("self.conv(x, seq_idx=None)").replace("g(x)"))
    assert "own.patch: required anchor not found: self.conv(x, seq_idx=None)" in text
    assert "target: lib.core:f" in text
    assert "where: lines 1-4 (f)" in text
    assert "nearest: line 3: " in text
    assert "self.conv(x, seq_idx=None, activation='silu')" in text


def test_a_missing_anchor_with_nothing_alike_says_so() -> None:
    assert "nearest: nothing alike" in refused(AnchorMissing, "def f():\n    pass\n", required("conv(a, b, c=1)").remove())


def test_the_nearest_statement_is_named_by_its_line_even_behind_a_decorator_or_in_a_block() -> None:
    before = "def f(x):\n    if x:\n        for i in x:\n            y = compute(i, 3)\n    return y\n"
    assert "nearest: line 4: y = compute(i, 3)" in refused(AnchorMissing, before, required("y = compute(i, 2)").remove())


def test_an_anchor_that_moved_names_the_function_that_has_it() -> None:
    before = """
    class C:
        def f(self, x):
            return self.g(x)

        def g(self, x):
            return conv(x, seq_idx=None)
    """
    text = refused(AnchorMoved, before, required("conv($$$A, seq_idx=None)").set_argument("seq_idx", "1"), of="C.f")
    assert "moved to: C.g, line 6" in text
    assert "next: target the function that has it now" in text


def test_an_ambiguous_anchor_lists_the_lines_and_how_to_narrow_it() -> None:
    text = refused(AnchorAmbiguous, "def f(x):\n    g(x)\n    y = 1\n    g(x)\n", required("g(x)").remove())
    assert "anchor matches 2 times, 1 expected: g(x)" in text
    assert "lines 2, 4" in text
    assert "narrow it with inside=, after= or before=, or say count=" in text


def test_count_and_at_least() -> None:
    before = "def f(x):\n    g(x)\n    g(x)\n"
    check(before, "def f(x):\n    h(x)\n    h(x)\n", required("g(x)", count=2).replace("h(x)"))
    check(before, "def f(x):\n    h(x)\n    h(x)\n", required("g(x)", at_least=1).replace("h(x)"))
    assert "2 times, 3 expected" in refused(AnchorAmbiguous, before, required("g(x)", count=3).replace("h(x)"))
    assert "2 times, at least 3 expected" in refused(AnchorAmbiguous, before, required("g(x)", at_least=3).replace("h(x)"))


def test_an_optional_anchor_that_matches_too_often_is_refused_all_the_same() -> None:
    assert "2 times" in refused(AnchorAmbiguous, "def f(x):\n    g(x)\n    g(x)\n", optional("g(x)").remove())


def test_a_missed_optional_anchor_is_reported_and_the_rest_made() -> None:
    done = check(
        "def f(x):\n    g(x)\n",
        "def f(x):\n    h(x)\n",
        required("g(x)").replace("h(x)"),
        optional("log($M)").insert_before("k()"),
    )
    assert done.missed == {"own.patch": ("log($M)",)}


def test_a_required_anchor_without_an_edit_is_a_condition() -> None:
    condition = required("y = 1")
    check("def f(x):\n    y = 1\n    g(x)\n", "def f(x):\n    y = 1\n    h(x)\n", condition, required("g(x)").replace("h(x)"))
    refused(AnchorMissing, "def f(x):\n    y = 2\n    g(x)\n", condition, required("g(x)").replace("h(x)"))


def test_of_one_of_exactly_one_must_match() -> None:
    change = one_of(required("old($X)").replace("new($X)"), required("older($X)").replace("new($X, 0)"))
    check("def f(x):\n    old(x)\n", "def f(x):\n    new(x)\n", change)
    check("def f(x):\n    older(x)\n", "def f(x):\n    new(x, 0)\n", change)
    text = refused(AnchorAmbiguous, "def f(x):\n    old(x)\n    older(x)\n", change)
    assert "more than one alternative matches" in text
    assert "line 2: old($X)" in text
    assert "line 3: older($X)" in text
    refused(AnchorMissing, "def f(x):\n    oldest(x)\n", change)


def test_edits_are_located_on_the_source_as_it_was() -> None:
    check(
        "def f(x):\n    a(x)\n    b(x)\n",
        "def f(x):\n    b(x)\n    c(x)\n",
        required("a(x)").replace("b(x)"),
        required("b(x)").replace("c(x)"),
    )


def test_two_patches_on_one_function() -> None:
    one, two = patch(required("g(x)").replace("h(x)"), name="own.one"), patch(at_start("k()"), name="own.two")
    done = rewrite("def f(x):\n    g(x)\n", [one, two])
    assert done.source == "def f(x):\n    k()\n    h(x)\n"
    assert [edit.patch for edit in done.edits] == ["own.two", "own.one"]


def test_two_patches_that_change_the_same_code_conflict() -> None:
    one = patch(required("y = g(x)").replace("y = h(x)"), name="own.one")
    two = patch(required("g($X)").set_argument("k", "1"), name="own.two")
    for order in ([one, two], [two, one]):
        with pytest.raises(PatchConflict) as caught:
            rewrite("def f(x):\n    y = g(x)\n", order)
        assert "own.one" in str(caught.value)
        assert "own.two" in str(caught.value)
        assert "lines 2 (replace) and 2 (set_argument)" in str(caught.value)


def test_inserts_of_two_patches_at_one_place_stand_in_the_order_of_the_patches() -> None:
    patches = [patch(required("g(x)").insert_before(f"{name}()"), name=f"own.{name}") for name in ("b", "a")]
    assert rewrite("def f(x):\n    g(x)\n", patches).source == "def f(x):\n    b()\n    a()\n    g(x)\n"


# Native


def test_fixed_when_matches_and_no_required_anchor_does() -> None:
    done = rewrite("def f(x):\n    new(x)\n", patch(required("old(x)").replace("newer(x)"), fixed_when="new($X)"))
    assert done.states == {"own.patch": "native"}
    assert done.source == "def f(x):\n    new(x)\n"
    assert done.edits == ()
    assert done.diff == ""


def test_fixed_when_beside_a_required_anchor_is_partly_native() -> None:
    text = refused(
        PartlyNative, "def f(x):\n    new(x)\n    old(x)\n", required("old(x)").replace("newer(x)"), fixed_when="new($X)"
    )
    assert "has the repaired form (new($X)), but a required anchor still matches" in text


def test_fixed_when_that_does_not_match_changes_nothing() -> None:
    check("def f(x):\n    old(x)\n", "def f(x):\n    newer(x)\n", required("old(x)").replace("newer(x)"), fixed_when="new($X)")


def test_a_source_that_has_what_the_patch_makes_is_native() -> None:
    for edit, source in [
        (required("g($X)").replace("h($X, 1)"), "def f(x):\n    h(x, 1)\n"),
        (required("g($X)").set_argument("k", "1"), "def f(x):\n    g(x, k=1)\n"),
        (required("g(x)").insert_before("h(x)"), "def f(x):\n    h(x)\n    g(x)\n"),
        (required("g(x)").insert_after("h(x)"), "def f(x):\n    g(x)\n    h(x)\n"),
        (at_start("h(x)"), 'def f(x):\n    """Doc."""\n    h(x)\n'),
        (parameter("k", default="1"), "def f(x, *, k=1):\n    pass\n"),
    ]:
        done = rewrite(source, patch(edit))
        assert (done.states, done.source) == ({"own.patch": "native"}, source)


@pytest.mark.parametrize("made", ["$X", "x", "None", "pass", "return None"])
def test_code_that_stands_in_any_function_does_not_make_it_native(made: str) -> None:
    """A lost anchor must not pass for a repaired release because some `None` or `x` is there."""
    refused(AnchorMissing, "def f(x):\n    if x:\n        pass\n    return None\n", required("g($X)").replace(made))


def test_a_hole_alone_as_replacement_is_made() -> None:
    check("def f(x):\n    return g(x + 1)\n", "def f(x):\n    return x + 1\n", required("g($X)").replace("$X"))


def test_a_part_of_what_the_patch_makes_is_partly_native() -> None:
    edits = [required("a(x)").replace("b(x)"), required("c(x)").replace("d(x)")]
    text = refused(PartlyNative, "def f(x):\n    b(x)\n    c(x)\n", *edits)
    assert "already has a part of what the patch makes: line 2: b(x)" in text


def test_an_optional_edit_that_stands_already_stops_nothing() -> None:
    check(
        "def f(x):\n    b(x)\n    c(x)\n",
        "def f(x):\n    b(x)\n    d(x)\n",
        optional("a(x)").replace("b(x)"),
        required("c(x)").replace("d(x)"),
    )


def test_an_insert_that_stands_at_one_of_two_matches_is_not_made_twice() -> None:
    edit = required("g(x)", count=2).insert_before("h(x)")
    text = refused(PartlyNative, "def f(x):\n    h(x)\n    g(x)\n    y = 1\n    g(x)\n", edit)
    assert "there already at lines 3; 2 matches" in text


# Targets


def test_overload_stubs_are_passed_by() -> None:
    before = """
    @overload
    def f(x: int) -> int: ...
    @typing.overload
    def f(x: str) -> str: ...
    def f(x):
        return g(x)
    """
    check(before, before.replace("g(x)", "h(x)"), required("g(x)").replace("h(x)"))


def test_parts_of_a_property_are_told_apart() -> None:
    before = """
    class C:
        @property
        def p(self):
            return g(self)

        @p.setter
        def p(self, value):
            g(value)

        @p.deleter
        def p(self):
            g(None)
    """
    edit = required("g($X)").replace("h($X)")
    check(before, before.replace("g(self)", "h(self)"), edit, of="C.p")
    check(before, before.replace("g(self)", "h(self)"), edit, of="C.p.fget")
    check(before, before.replace("g(value)", "h(value)"), edit, of="C.p.fset")
    check(before, before.replace("g(None)", "h(None)"), edit, of="C.p.fdel")


def test_an_anchor_in_a_nested_function_or_comprehension_belongs_to_the_outer_one() -> None:
    before = """
    def f(x):
        def inner(y):
            return [g(z) for z in y]
        return inner(x)
    """
    check(before, before.replace("g(z)", "h(z)"), required("g($X)").replace("h($X)"))


def test_a_nested_function_is_no_target() -> None:
    text = refused(TargetMissing, "def f(x):\n    def g():\n        h(x)\n    return g\n", required("h(x)").remove(), of="f.g")
    assert "a function inside a function is patched through the outer one" in text


def test_a_missing_target_names_the_closest() -> None:
    source = "class Model:\n    def forward(self):\n        pass\nclass Mixer:\n    def forwards(self):\n        pass\n"
    text = refused(TargetMissing, source, at_start("x = 1"), of="Mixer.forward")
    assert "the module defines no function Mixer.forward" in text
    assert "Mixer.forwards" in text
    assert "Model.forward" in text


def test_a_class_is_no_target() -> None:
    refused(TargetMissing, "class C:\n    pass\n\n\nx = 1\n", at_start("x = 1"), of="C")


def test_of_several_definitions_those_that_do_not_fit_are_told() -> None:
    before = """
    try:
        import fast
    except ImportError:
        def f(x):
            return g(x)
    else:
        def f(x):
            return fast.g(x)
    """
    done = rewrite(textwrap.dedent(before), Patch("own.patch", "lib.core:f", [required("return g(x)").replace("return h(x)")]))
    assert done.source == textwrap.dedent(before).replace("return g(x)", "return h(x)")
    assert done.others == {"own.patch": ("does not fit the definition at line 8: required anchor not found: return g(x)",)}
    text = refused(AnchorMissing, before, required("return k(x)").replace("return h(x)"))
    assert "in none of the 2 definitions" in text
    both = one_of(required("return g(x)").replace("return h(x)"), required("return fast.g(x)").replace("return fast.h(x)"))
    check(before, before.replace("g(x)", "h(x)"), both)


def test_the_definition_that_begins_at_a_line_is_meant() -> None:
    source = "if a:\n    def f(x):\n        g(x)\nelse:\n    @d\n    def f(x):\n        g(x)\n"
    done = rewrite(source, patch(required("g(x)").replace("h(x)")), lines={"f": 5})
    assert done.source == source[:-5] + "h(x)\n"
    with pytest.raises(TargetMissing):
        rewrite(source, patch(required("g(x)").replace("h(x)")), lines={"f": 4})


def test_the_source_of_a_method_alone_will_do() -> None:
    done = rewrite("def m(self):\n    g(self)\n", patch(required("g(self)").remove(), of="C.m"))
    assert done.source == "def m(self):\n    pass\n"
    with pytest.raises(TargetMissing):
        rewrite("def m(self):\n    g(self)\n", patch(required("g(self)").remove(), of="C.m"), lines={})


def test_anchors_do_not_match_in_signature_docstring_comment_or_another_function() -> None:
    before = '''
    def other(x):
        return g(x)

    @g(x)
    def f(x=g(x)):
        """Calls g(x)."""
        # g(x)
        return g(x)
    '''
    check(before, before[: before.rindex("g(x)")] + "h(x)\n", required("g(x)").replace("h(x)"))


def test_source_that_is_not_python_is_refused_with_its_line() -> None:
    text = refused_source("def f(x):\n    return x +\n")
    assert "not valid Python here" in text
    assert "line 2" in text


def test_source_that_is_indented_as_a_whole_is_to_be_dedented() -> None:
    assert "textwrap.dedent" in refused_source("    def f(x):\n        return x\n")
    assert "textwrap.dedent" in refused_source("# a comment\n\n    @d\n    def f(x):\n        return x\n")
    assert "textwrap.dedent" not in refused_source("def f(x):\n    return x +\n")


@pytest.mark.parametrize("deep", ["-" * 100_000 + "x", "x" + ".a" * 50_000])
def test_source_that_is_nested_too_deeply_says_so(deep: str) -> None:
    assert "nested too deeply for Python's recursion limit" in refused_source(f"def f(x):\n    return {deep}\n")


@pytest.mark.parametrize("source", [None, 3, bytearray(b"x"), ["def f(): pass"]])
def test_what_is_no_source_at_all(source: object) -> None:
    assert "neither text nor bytes" in refused_source(source)  # type: ignore[arg-type]


def refused_source(source: str | bytes) -> str:
    with pytest.raises(SourceUnavailable) as caught:
        rewrite(source, patch(at_start("x = 1")))
    return str(caught.value)


def test_no_warning_of_the_upstream_code_is_passed_on(recwarn: pytest.WarningsRecorder) -> None:
    rewrite('def f(x):\n    g(x)\n    return x is "\\d"\n', patch(required("g(x)").replace("h(x)")))
    assert [str(warning.message) for warning in recwarn] == []


# Lines


def test_lines_are_those_of_the_source_as_it_was_although_statements_are_written_out() -> None:
    before = "def f(x):\n    if x: a(); b()\n    c(); d()\n    e()\n"
    edits = [required("b()").insert_before("new()"), required("c()").remove(), required("e()").replace("g()")]
    done = rewrite(before, patch(*edits))
    assert [(edit.action, edit.line) for edit in done.edits] == [("insert_before", 2), ("remove", 3), ("replace", 4)]
    text = refused(AnchorAmbiguous, before + "    e()\n", *edits)
    assert "lines 4, 5" in text
    text = refused(
        PatchConflict, before, required("b()").insert_before("new()"), required("e()").remove(), required("e()").replace("g()")
    )
    assert "lines 4 (remove) and 4 (replace)" in text


def test_a_native_patch_writes_no_lines_out_for_another() -> None:
    before = "def f(x):\n    if x: a(); new()\n    e()\n"
    native = patch(optional("a()").insert_before("b()"), fixed_when="new()", name="own.native")
    done = rewrite(before, [native, patch(required("e()").replace("g()"))])
    assert done.states == {"own.native": "native", "own.patch": "applied"}
    assert done.source == before.replace("e()", "g()")


def test_lines_that_would_change_their_meaning_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """libcst is not trusted: what it writes out must read the same."""
    monkeypatch.setattr("patchwork.engine.reshape._written_out", lambda chunk, *rest: chunk.replace("a(); ", ""))
    text = refused(InvalidResult, "def f(x):\n    a(); b()\n", required("b()").insert_before("new()"))
    assert "cannot be written one statement a line without a change of meaning" in text
    assert "lines 2-2" in text


@pytest.mark.parametrize("signature", ["x, c=K", "x, *, c=K", "x, c", "c, /, x=1"])
def test_a_parameter_that_stands_with_another_default_is_no_native_one(signature: str) -> None:
    patch = Patch(name="own.f", target="m:f", edits=[parameter("c", default="K + 1")])
    with pytest.raises(PartlyNative, match="has a parameter c already, but not with the default K \\+ 1"):
        rewrite(f"def f({signature}):\n    return x\n", patch)
    assert rewrite("def f(x, *, c=(K+1)):\n    return x\n", patch).states == {"own.f": "native"}


@pytest.mark.parametrize(
    ("anchor", "code", "drifted"),
    [
        ("foo(x) + 1", "foo(x)", "foo(x) + 2"),
        ("a not in (b,)", "a in (b,)", "not a in (b,)"),
        ("g($X, scale=s($X))", "s($X)", "h(x, s(x))"),
        ("attend(a, b)", "attend(b, a)", "attend(a, b, x) + attend(b, a)"),
        ("g(a, b)", "g(a)", "g(a)"),
    ],
)
def test_a_result_without_a_word_that_the_anchor_lacks_is_no_sign_of_it(anchor: str, code: str, drifted: str) -> None:
    """Drift, not `native`: the result is a part of what the anchor looks for, or of what upstream made of that."""
    source = f"def f(x, a, b):\n    return {drifted}\n"
    assert "fixed upstream?" in refused(AnchorMissing, source, required(anchor).replace(code))
    patch = Patch("own.patch", "lib.core:f", [required(anchor).replace(code)], fixed_when=drifted)
    assert rewrite(source, patch).states == {"own.patch": "native"}


def test_a_native_patch_says_where_the_source_has_it() -> None:
    def native(source: str, *edits: object, **more: object) -> str:
        done = rewrite(source, Patch("own.patch", "lib.core:f", edits, **more))  # type: ignore[arg-type]
        assert done.states == {"own.patch": "native"}
        return done.native["own.patch"]

    source = "def f(x, *, y=1):\n    start()\n    return g(x, k=x)\n"
    assert native(source, required("h(x)").replace("g(x, k=x)")) == "line 3: g(x, k=x)"
    assert native(source, required("g(x)").set_argument("k", "x")) == "line 3: k=x"
    assert native(source, at_start("start()")) == "line 2: start()"
    assert native(source, parameter("y", default="1")) == "line 1: parameter y"
    assert native(source, required("gone()").remove(), fixed_when="g($X, k=$X)") == "line 3: g($X, k=$X)"
