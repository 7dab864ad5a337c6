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
