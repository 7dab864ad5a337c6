"""A captured name is not used where it means something else by then."""

from __future__ import annotations

import textwrap

import pytest

from patchwork import CaptureRebound, Patch, required, rewrite


def patch(edit: object) -> Patch:
    return Patch("own.patch", "lib:f", [edit])  # type: ignore[list-item]


def refused(source: str, edit: object) -> str:
    with pytest.raises(CaptureRebound) as caught:
        rewrite(textwrap.dedent(source).lstrip("\n"), patch(edit))
    return str(caught.value)


def made(source: str, edit: object) -> str:
    return rewrite(textwrap.dedent(source).lstrip("\n"), patch(edit)).source


HEAD = required("$L = self.head($H)\n$$$BETWEEN\nreturn $L").insert_before("seen($L)")
KEEP = "$L = self.head($H)\n$$$BETWEEN\nreturn $L"


def test_a_renamed_local_is_captured_and_used() -> None:
    source = "def f(self, h):\n    outputs_logits = self.head(h)\n    log()\n    return outputs_logits\n"
    edit = required(KEEP).replace("$L = self.head($H)\n$$$BETWEEN\nseen($L)\nreturn $L")
    assert "    log()\n    seen(outputs_logits)\n    return outputs_logits\n" in made(source, edit)


def test_a_local_bound_again_in_between_is_refused_with_both_lines() -> None:
    source = "def f(self, h):\n    x = self.head(h)\n    x = x.float()\n    return x\n"
    text = refused(source, required(KEEP).replace("$L = self.head($H)\n$$$BETWEEN\nseen($L)\nreturn $L"))
    assert "$L captures x at line 2, but x is bound again at line 3" in text
    refused(source, required(KEEP).insert_after("seen($L)"))


@pytest.mark.parametrize(
    "again",
    [
        "x = 1",
        "x += 1",
        "x: int = 1",
        "a, (b, *x) = c",
        "for x in c: pass",
        "for a, x in c: pass",
        "with c as x: pass",
        "if (x := c): pass",
        "import x",
        "import a as x",
        "from a import x",
        "import x.y",
        "def x(): pass",
        "class x: pass",
        "del x",
        "try:\n    pass\nexcept E as x:\n    pass",
        "if c:\n    while c:\n        x = 2",
        "match c:\n    case [x, *_]:\n        pass",
        "match c:\n    case {'a': 1, **x}:\n        pass",
    ],
)
def test_every_way_to_bind_a_name_counts(again: str) -> None:
    source = f"def f(self, h, c):\n    x = self.head(h)\n{textwrap.indent(again, '    ')}\n    return x\n"
    refused(source, required(KEEP).insert_after("seen($L)"))


@pytest.mark.parametrize(
    "harmless",
    [
        "x.y = 1",
        "x[0] = 1",
        "y = [x for x in c]",
        "y = lambda x: x",
        "def g(x):\n    x = 1",
        "g(x=1)",
        "x: int",
        "y = x",
    ],
)
def test_what_binds_another_name_or_another_scope_does_not_count(harmless: str) -> None:
    source = f"def f(self, h, c):\n    x = self.head(h)\n{textwrap.indent(harmless, '    ')}\n    return x\n"
    assert "seen(x)" in made(source, required(KEEP).replace("$L = self.head($H)\n$$$BETWEEN\nseen($L)\nreturn $L"))


def test_the_statement_of_the_match_itself_binds_too() -> None:
    source = "def f(x):\n    x = g(x)\n    return x\n"
    refused(source, required("g($X)").insert_after("seen($X)"))
    assert "    seen(x)\n    x = g(x)\n" in made(source, required("g($X)").insert_before("seen($X)"))
    assert "x = g(x, k=x)" in made(source, required("g($X)").set_argument("k", "$X"))
    assert "x = h(x)" in made(source, required("g($X)").replace("h($X)"))
    assert "    x = g(x)\n    seen(x)\n" in made(source, required("$L = g($_)").insert_after("seen($L)"))


def test_a_loop_over_what_it_rebinds() -> None:
    source = "def f(x):\n    for y in g(x):\n        x = y\n    return x\n"
    refused(source, required("g($X)").insert_after("seen($X)"))


def test_a_dotted_name_bound_again() -> None:
    source = "def f(self, h):\n    r = self.head(self.state)\n    self.state = h\n    return r\n"
    refused(source, required("r = self.head($S)\n$$$REST\nreturn r").insert_after("seen($S)"))


def test_a_part_of_a_captured_expression_bound_again() -> None:
    source = "def f(a, b):\n    r = g(a[b] + 1)\n    b = 2\n    h(r)\n"
    refused(source, required("r = g($E)\n$$$REST\nh(r)").insert_after("seen($E)"))


def test_a_hole_that_the_code_does_not_use_may_be_bound_again() -> None:
    source = "def f(self, h):\n    x = self.head(h)\n    x = 2\n    h2(x)\n"
    assert made(source, required("$L = self.head($H)\n$$$B\nh2($L)").insert_after("seen($H)")).endswith("    seen(h)\n")


def test_what_inside_captured_and_the_loop_binds_again_is_refused() -> None:
    source = "def f(xs):\n    for x in xs:\n        x = g(x)\n        use(x)\n"
    refused(source, required("use($_)", inside="for $I in $_XS:").insert_after("seen($I)"))
    source = "def f(xs):\n    for x in xs:\n        use(x)\n        xs = 1\n"
    refused(source, required("use($_)", inside="for $_ in $XS:").insert_before("seen($XS)"))


def test_a_replacement_moves_a_captured_name_before_what_binds_it() -> None:
    source = "def f(self):\n    one()\n    x = 1\n    return g(x)\n"
    edit = required("one()\n$$$MID\nreturn g($L)")
    refused(source, edit.replace("one($L)\n$$$MID\nreturn g($L)"))
    assert "seen(x)\n    return g(x)" in made(source, edit.replace("one()\n$$$MID\nseen($L)\nreturn g($L)"))


def test_nothing_is_changed_where_one_of_several_matches_is_refused() -> None:
    source = "def f(x, y):\n    z = g(x)\n    y = g(y)\n"
    text = refused(source, required("g($X)", count=2).insert_after("seen($X)"))
    assert "line 3" in text


@pytest.mark.parametrize(
    ("body", "edit"),
    [
        ("log(a)\n    return [fix(a) for a in rows]", required("fix($V)", after="log($S)").replace("fix($V) * $S")),
        ("log(a)\n    return map(lambda a: fix(a), rows)", required("fix($V)", after="log($S)").replace("fix($S)")),
        ("log(a)\n    def g(a):\n        return fix(1)\n    return g", required("fix($V)", after="log($S)").replace("fix($S)")),
        (
            "log(a)\n    def g():\n        a = 2\n        return fix(1)\n    return g",
            required("fix(1)", after="log($S)").replace("fix($S)"),
        ),
        ("z = [log(b) for b in rows]\n    return fix(0)", required("fix(0)", after="log($S)").replace("fix($S)")),
        ("z = lambda b: log(b)\n    return fix(0)", required("fix(0)", after="log($S)").replace("fix($S)")),
        ("class C:\n        b = 1\n        log(b)\n    return fix(0)", required("fix(0)", after="log($S)").replace("fix($S)")),
        ("z = [log(b.c) for b in rows]\n    return z", required("log($S)").insert_before("seen($S)")),
        ("return fix(a)", required("fix($S)").replace("[fix(a) * $S for a in (1, 2)]")),
        ("return fix(a)", required("fix($S)").replace("(lambda a: a + $S)(1)")),
        ("return fix(a)", required("fix($S)").insert_before("a = 1\nseen($S)")),
    ],
)
def test_a_name_that_is_the_variable_of_another_scope_there_is_refused(body: str, edit: object) -> None:
    refused(f"def f(rows, a):\n    {body}\n", edit)


@pytest.mark.parametrize(
    ("body", "edit", "made_of_it"),
    [
        ("return [fix(a) for a in rows]", required("fix($V)").replace("fix($V) * $V"), "[fix(a) * a for a in rows]"),
        (
            "log(b)\n    return [fix(a) for a in rows]",
            required("fix($V)", after="log($S)").replace("fixed($S)"),
            "[fixed(b) for a in rows]",
        ),
        (
            "return [fix(a) for a in rows]",
            required("[$X for a in $Y]").replace("list($X for a in $Y)"),
            "list(fix(a) for a in rows)",
        ),
        (
            "return [fix(q) for q in rows]",
            required("[$X for $V in $Y]").replace("list($X for $V in $Y)"),
            "list(fix(q) for q in rows)",
        ),
        ("return [x for x in fix(a)]", required("fix($S)").insert_before("seen($S)"), "seen(a)"),
        ("return fix([x for x in rows])", required("fix($S)").insert_before("seen($S)"), "seen([x for x in rows])"),
        (
            "log(a)\n    def g(x=fix(0)):\n        a = 1\n    return g",
            required("fix(0)", after="log($S)").replace("fix($S)"),
            "x=fix(a)",
        ),
        (
            "return map(lambda q: fix(q), rows)",
            required("lambda $$$P: $B").replace("lambda $$$P: ($B, 1)"),
            "lambda q: (fix(q), 1)",
        ),
    ],
)
def test_the_same_variable_at_both_places_is_used(body: str, edit: object, made_of_it: str) -> None:
    source = f"def f(rows, a, b=1):\n    {body}\n"
    assert made_of_it in made(source, edit)


@pytest.mark.parametrize(
    ("between", "hole"),
    [("m[0] = g(m[0])", "m[0]"), ("m[0] += 3", "m[0]"), ("m[i] = 2", "m[0]"), ("del m[0]", "m[i]"), ("m.a[1] = 2", "m.a[0]")],
)
def test_an_item_that_is_set_again_counts(between: str, hole: str) -> None:
    refused(
        f"def f(m, i):\n    r = g({hole})\n    {between}\n    h(r)\n", required("r = g($E)\n$$$_\nh(r)").insert_after("seen($E)")
    )


def test_the_name_of_an_exception_is_gone_after_its_handler() -> None:
    source = "def f():\n    try:\n        g()\n    except E as e:\n        h(e)\n    return k()\n"
    refused(source, required("k()", after="h($E)").replace("k($E)"))
    assert "h(e)\n        seen(e)" in made(source, required("h($E)").insert_after("seen($E)"))


def test_an_assignment_in_an_argument_counts() -> None:
    source = "def f(a):\n    b = g(a, k=(a := 3))\n"
    refused(source, required("b = g($A, k=$K)").replace("b = g($A, k=$K, z=$A)"))
    refused(source, required("g($A, k=$K)").set_argument("z", "$A"))


def test_what_another_edit_or_patch_binds_counts() -> None:
    source = "def f(a):\n    g(a)\n    q()\n    n(1)\n"
    binding = Patch("one.a", "lib:f", [required("q()").replace("a = 0")])
    reading = Patch("two.b", "lib:f", [required("n($_)", after="g($A)").replace("s($A)")])
    for order in ([binding, reading], [reading, binding]):
        with pytest.raises(CaptureRebound, match=r"an edit of one\.a binds it"):
            rewrite(source, order)
    harmless = Patch("one.a", "lib:f", [required("q()").replace("b = 0")])
    assert "    b = 0\n    s(a)\n" in rewrite(source, [harmless, reading]).source


def test_the_other_branch_of_an_if_binds_nothing_on_this_one() -> None:
    source = "def f(a, c):\n    g(a)\n    if c:\n        a = 1\n    else:\n        n(0)\n"
    edit = required("n(0)", after="g($A)").replace("n($A)")
    assert "        n(a)\n" in made(source, edit)
    looped = "def f(a, c):\n    g(a)\n    for i in c:\n        if i:\n            a = 1\n        else:\n            n(0)\n"
    refused(looped, edit)
    refused(source.replace("    else:\n        n(0)\n", "    n(0)\n"), edit)


STEP = "def f(self, hidden):\n    hidden = self.norm(hidden)\n    return hidden\n"


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        (STEP, required("$H = self.norm($X)").replace("$H = self.norm($X)\nself.log_input($X)")),
        (STEP, required("$H = self.norm($X)").replace("$H = self.norm($X) * 2\n$H = $H + $X")),
        ("def f(a):\n    a += g(a)\n    return a\n", required("$A += g($B)").replace("$A = $A + g($B)\nh($B)")),
        (
            "def f(x):\n    for i in g(x):\n        x = h(i)\n    return x\n",
            required("for $I in g($X):\n    $$$B").replace("for $I in g($X):\n    log($X)\n    $$$B"),
        ),
        (
            "def f(x):\n    for x in g(x):\n        h(x)\n",
            required("for $I in g($X):\n    $$$B").replace("for $I in g($X):\n    $$$B\nh2($X)"),
        ),
        (
            "def f(x):\n    with open(x) as x:\n        h(x)\n",
            required("with open($P) as $F:\n    $$$B").replace("with open($P) as $F:\n    log($P)\n    $$$B"),
        ),
        (
            "def f(x, y):\n    if y:\n        x = x + y\n    return x\n",
            required("if y:\n    $$$B").replace("def go():\n    $$$B\nif y:\n    go()"),
        ),
        (
            "def f(x, y):\n    if y:\n        return x\n    return y\n",
            required("if y:\n    $$$B").replace("def go():\n    $$$B\nif y:\n    go()"),
        ),
        ("def f(x, i):\n    return [g(i) for i in x]\n", required("[g($A) for $B in $L]").replace("[g($A) for $B in $L] + [$A]")),
        ("def f(x):\n    return [g(x) for x in x]\n", required("[g($A) for $B in $L]").replace("[g($A, $L) for $B in $L]")),
        ("def f(h):\n    return g((x := h()), x)\n", required("g($A, $B)").replace("g2($B, $A)")),
        ("def f(h):\n    if (x := h()) and g(x):\n        pass\n", required("$A and g($B)").replace("g($B) and $A")),
    ],
)
def test_the_edits_own_code_does_not_give_a_captured_name_another_meaning(source: str, edit: object) -> None:
    refused(source, edit)


@pytest.mark.parametrize(
    ("source", "edit", "made_of_it"),
    [
        (
            "def f(self, out):\n    loss = self.criterion(out)\n    return loss\n",
            required("loss = self.criterion($X)\nreturn $R").replace("loss = self.criterion($X)\nself.log(loss)\nreturn $R"),
            "    self.log(loss)\n    return loss\n",
        ),
        (
            "def f(self, x):\n    for layer in self.layers:\n        x = layer(x, self.mask[layer.idx])\n    return x\n",
            required("for layer in self.layers:\n    x = layer(x, $M)").replace(
                "with record():\n    for layer in self.layers:\n        x = layer(x, $M)"
            ),
            "            x = layer(x, self.mask[layer.idx])\n",
        ),
        (
            "def f(self, rows):\n    return [self.tok(r['text']) for r in rows]\n",
            required("[self.tok($A) for r in rows]").replace("[self.tok($A, add_eos=True) for r in rows]"),
            "[self.tok(r['text'], add_eos=True) for r in rows]",
        ),
        (
            "def f(self, rows):\n    return rows.map(lambda r: self.tok(r['text'], n=1))\n",
            required("rows.map(lambda r: self.tok($A, n=1))").replace("rows.map(lambda r: self.tok($A, n=2), batched=True)"),
            "lambda r: self.tok(r['text'], n=2)",
        ),
        (
            "def f(p):\n    with open(p) as fh:\n        return json.load(fh)\n",
            required("with open(p) as fh:\n    return $R").replace("with open(p, encoding='utf-8') as fh:\n    return $R"),
            "        return json.load(fh)\n",
        ),
        (
            "def f(p):\n    try:\n        return g(p)\n    except KeyError as e:\n        raise ValueError(str(e))\n",
            required("try:\n    return g(p)\nexcept KeyError as e:\n    raise ValueError($M)").replace(
                "try:\n    return g(p)\nexcept KeyError as e:\n    raise ValueError($M) from e"
            ),
            "raise ValueError(str(e)) from e",
        ),
        (
            "def f(self, p):\n    def tok(ex):\n        return self.t(ex['text'])\n    return p.map(tok)\n",
            required("def tok(ex):\n    return self.t($A)").replace("def tok(ex):\n    return self.t($A, add=True)"),
            "return self.t(ex['text'], add=True)",
        ),
        (
            "def f(q):\n    if q is not None:\n        q = g(q)\n        h(q)\n    return q\n",
            required("h($Q)", inside="if $Q is not None:").replace("h2($Q.float())"),
            "        h2(q.float())\n",
        ),
        (
            "def f(q, k):\n    q, k = rope(q, k)\n    if c:\n        k = cache(k)\n    return attn(q, k)\n",
            required("attn($Q, $K)", after="$Q, $K = rope($Q, $K)").replace("attn($Q, $K, causal=True)"),
            "return attn(q, k, causal=True)",
        ),
        (
            "def f(h):\n    if h == 1:\n        a()\n    elif h == 2:\n        b()\n    else:\n        c()\n    return h\n",
            required("if h == 1:\n    $$$B\nelse:\n    $$$C").replace("if h == 1 and ok:\n    $$$B\nelse:\n    $$$C"),
            "    else:\n        if h == 2:\n            b()\n        else:\n            c()\n",
        ),
        ("def f(h):\n    return h\n", required("return $X").replace("return ($X, None)"), "return (h, None)"),
        (
            "def f(x):\n    if x:\n        g()\n    return y\n",
            required("if $X:\n    g()").replace("if $X is not None:\n    g()\n    log()"),
            "    if x is not None:\n",
        ),
        (
            "def f(x):\n    x = self.head(x)\n    y = x + 1\n    return y\n",
            required("$L = self.head($_)\n$M = $L + 1").replace("$L = self.head2($_)\nseen($L)\n$M = $L + 2"),
            "    seen(x)\n    y = x + 2\n",
        ),
    ],
)
def test_what_is_plainly_right_is_not_refused(source: str, edit: object, made_of_it: str) -> None:
    assert made_of_it in made(source, edit)


def test_of_two_inserts_at_one_place_the_first_may_read_what_the_second_binds() -> None:
    source = "def f(s):\n    mask = s != 1\n    return mask\n"
    reading = Patch("a.x", "lib:f", [required("$M = s != 1").insert_after("n($M)")])
    binding = Patch("b.x", "lib:f", [required("mask = s != 1").insert_after("mask = mask & 1")])
    assert "    n(mask)\n    mask = mask & 1\n" in rewrite(source, [reading, binding]).source
    with pytest.raises(CaptureRebound):
        rewrite(source, [binding, reading])
