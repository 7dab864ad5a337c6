"""A required anchor missed: everything that the error says."""

from __future__ import annotations

import pickle
import textwrap

import pytest

import patchwork
from patchwork import AnchorMissing, AnchorMoved, Patch, one_of, parameter, required, rewrite
from patchwork.engine.difference import difference

MIXER = """
class Mixer:
    def forward(self, x, seq_idx=None):
        projected = self.in_proj(x)
        mixed = self.causal_conv1d_fn(
            x=projected,
            weight=self.conv1d.weight.squeeze(1),
            bias=self.conv1d.bias,
            activation=self.activation,
            seq_idx={},
        )
        return mixed

    def other(self, x):
        return self.scan(x, chunk=64)
"""
SEQ_IDX = required("self.causal_conv1d_fn($$$ARGS, seq_idx=None)").set_argument("seq_idx", "seq_idx")


def missed(source: str, *edits: object, **more: object) -> AnchorMissing:
    patch = Patch("pack.mixer", "lib:Mixer.forward", edits, **more)  # type: ignore[arg-type]
    with pytest.raises(AnchorMissing) as caught:
        rewrite(textwrap.dedent(source).lstrip("\n"), patch)
    return caught.value


def test_the_closest_statement_comes_with_a_short_diff() -> None:
    error = missed(MIXER.format("kwargs.get('cu')"), SEQ_IDX)
    assert error.where == "lines 2-11 (Mixer.forward)"
    assert error.nearest.startswith("line 4: ")
    assert error.diff.split("\n") == [
        "  self.causal_conv1d_fn(",
        "      $$$ARGS: 4 lines",
        "-     seq_idx=None)",
        "+     seq_idx=kwargs.get('cu'))",
    ]


def test_what_a_hole_takes_is_no_difference() -> None:
    body = "        for batch in rows:\n            out = model(batch, labels=labels)\n            one(out)\n            two()\n"
    source = f"class Mixer:\n    def forward(self, rows):\n{body}        log(out)\n        other()\n        return out\n"
    edit = required("for $B in $_:\n    $OUT = model($B, labels=None)\n    $$$REST\nlog($OUT)\nreturn $OUT").remove()
    assert missed(source, edit).diff.split("\n") == [
        "  for batch in rows:",
        "-     $OUT = model($B, labels=None)",
        "+     out = model(batch, labels=labels)",
        "      $$$REST: 2 lines",
        "  log(out)",
        "- return $OUT",
        "+ other()",
    ]


def test_a_hole_in_a_block_takes_nothing_behind_the_block() -> None:
    lines = difference("if x:\n    a()\n    $$$B\nreturn y", "if x:\n    a()\n    b()\n    c()\nz()\nreturn y").split("\n")
    assert lines == ["  if x:", "      a()", "      $$$B: 2 lines", "+ z()", "  return y"]


def test_keywords_that_a_hole_takes_may_stand_anywhere() -> None:
    source = "class Mixer:\n    def forward(self, q):\n        return attend(scale=2, mask=q, query=q)\n"
    assert missed(source, required("attend($$$ARGS, mask=None)").replace("g($$$ARGS)")).diff.split("\n") == [
        "  attend(",
        "      $$$ARGS: 2 lines",
        "-     mask=None)",
        "+     mask=q,",
    ]


def test_lines_that_are_alike_give_way_to_those_that_are_not() -> None:
    body = "\n".join(f"    call_{i}(x, {i})" for i in range(40))
    lines = difference("if x:\n" + body, "if x:\n" + body.replace("call_20", "call")).split("\n")
    assert lines[0] == "  ... 19 more lines"
    assert "-     call_20(x, 20)" in lines
    assert "+     call(x, 20)" in lines
    assert len(lines) < 10


def test_a_short_anchor_is_compared_by_its_names() -> None:
    source = "class Mixer:\n    def forward(self, x):\n        y = compute(x)\n        value = older()\n"
    error = missed(source, required("old()").remove())
    assert error.nearest == "line 4: older()"
    assert error.diff.split("\n") == ["- old()", "+ older()"]
    assert missed(source, required("gone()").remove()).nearest == "nothing alike"


@pytest.mark.parametrize(
    ("pattern", "code", "call", "said"),
    [
        ("g($X, auth=auth)", "None", "g(x, auth=auth, hooks=hooks)", ""),
        ("g($X, auth=auth)", "None", "g(x, auth=None, hooks=hooks)", "passes this auth already: auth=None"),
        ("g($X, auth=auth)", "None", "g(x, auth=other, hooks=hooks)", "passes another auth already: auth=other"),
        ("g($X, history=$H)", "[*$H, 1]", "g(x, history=h, hooks=hooks)", ""),
        ("g($X, history=$H)", "[*$H, 1]", "g(x, history=[*h, 1], hooks=hooks)", "passes this history already: history=[*h, 1]"),
        ("g($X)", "None", "g(x, auth=auth)", "passes another auth already: auth=auth"),
    ],
)
def test_what_the_pattern_asks_for_is_no_sign_of_a_fix(pattern: str, code: str, call: str, said: str) -> None:
    edit = required(pattern).set_argument("history" if "history" in pattern else "auth", code)
    error = missed(f"class Mixer:\n    def forward(self, x):\n        return {call}\n", edit)
    assert error.fixed_upstream == (f"line 3 {said}" if said else "")


def test_a_diff_of_one_word_is_two_lines() -> None:
    source = "class Mixer:\n    def forward(self, x):\n        return self.scan(x, chunk=32)\n"
    assert missed(source, required("return self.scan(x, chunk=64)").remove()).diff.split("\n") == [
        "- return self.scan(x, chunk=64)",
        "+ return self.scan(x, chunk=32)",
    ]


def test_a_long_block_is_cut() -> None:
    body = "\n".join(f"    call_{i}(x, {i})" for i in range(40))
    source = f"class Mixer:\n    def forward(self, x):\n        if x:\n{textwrap.indent(body, '        ')}\n"
    error = missed(source, required("if y:\n" + body).remove())
    assert "more lines" in error.diff
    assert len(error.diff.split("\n")) < 20


def test_code_that_another_function_has_is_said_to_have_moved() -> None:
    error = missed(MIXER.format("None"), required("self.scan($X, chunk=64)").replace("self.scan($X, chunk=32)"))
    assert isinstance(error, AnchorMoved)
    assert error.moved_to == ("Mixer.other, line 14",)
    assert "moved to: Mixer.other, line 14" in str(error)


@pytest.mark.parametrize(
    ("value", "said"),
    [("seq_idx[:, :1]", "passes another seq_idx already: seq_idx=seq_idx[:, :1]"), ("None or seq_idx", "another")],
)
def test_an_argument_that_the_release_passes_is_fixed_upstream(value: str, said: str) -> None:
    error = missed(MIXER.format(value), SEQ_IDX)
    assert said in error.fixed_upstream
    assert error.fixed_upstream.startswith("line 4")
    assert "fixed_when=" in error.hint


def test_a_replacement_that_the_release_nearly_has_is_fixed_upstream() -> None:
    source = "class Mixer:\n    def forward(self, x, mask):\n        return self.attend(x, mask=mask.to(x.dtype), packed=True)\n"
    edit = required("self.attend(x, mask=None)").replace("self.attend(x, mask=mask.to(x.device), packed=True)")
    assert "line 3 is nearer to what the patch makes" in missed(source, edit).fixed_upstream


def test_inserted_code_that_stands_elsewhere_is_fixed_upstream() -> None:
    source = "class Mixer:\n    def forward(self, x):\n        reset_state(self, x)\n        return self.new(x)\n"
    error = missed(source, required("return self.old(x)").insert_before("reset_state(self, x)"))
    assert "line 3 is what insert_before makes: reset_state(self, x)" in error.fixed_upstream


def test_another_part_of_the_patch_that_stands_is_a_sign_of_it() -> None:
    edits = (parameter("seq_idx", default="None"), required("self.gone($X)").replace("self.gone($X, seq_idx)"))
    source = MIXER.format("None").replace("seq_idx=None):", "*, seq_idx=None):")
    assert "another part of the patch already: line 2: parameter seq_idx" in missed(source, *edits).fixed_upstream


def test_nothing_is_said_to_be_fixed_where_nothing_is() -> None:
    error = missed(MIXER.format("0").replace(", seq_idx=None)", ")").replace("seq_idx=0", "reset=0"), SEQ_IDX)
    assert error.fixed_upstream == ""
    assert "fixed upstream?" not in str(error)


def test_of_alternatives_the_nearest_is_told() -> None:
    edit = one_of(
        required("completely.different(1, 2, 3)").remove(),
        required("self.causal_conv1d_fn($$$ARGS, seq_idx=None)").set_argument("seq_idx", "1"),
    )
    error = missed(MIXER.format("cu"), edit)
    assert "none of 2 alternatives found; the nearest is self.causal_conv1d_fn($$$ARGS, seq_idx=None)" in error.what
    assert error.nearest.startswith("line 4")


def test_the_next_command_names_the_patch_and_its_releases() -> None:
    error = missed(MIXER.format("cu"), SEQ_IDX, versions={"transformers": ">=4.57,<5.9"})
    assert error.command == "patchwork check pack.mixer --against 'transformers>=4.57,<5.9'"
    assert str(error).endswith(f"  then: `{error.command}`")
    assert missed(MIXER.format("cu"), SEQ_IDX).command == "patchwork check pack.mixer"
    error.command = "patchwork check mine.py"
    assert str(pickle.loads(pickle.dumps(error))).endswith("  then: `patchwork check mine.py`")


def test_the_last_release_that_fitted_is_told_where_it_is_known() -> None:
    error = missed(MIXER.format("cu"), SEQ_IDX)
    assert "last match" not in str(error)
    error.last_match = "transformers 5.8.1"
    assert "last match: transformers 5.8.1" in str(pickle.loads(pickle.dumps(error)))


def test_applied_the_error_names_the_file_and_the_lines(lib) -> None:  # type: ignore[no-untyped-def]
    lib.write("def f(x):\n    return x\n")
    for load in (False, True):
        if load:
            lib.load()
        with pytest.raises(AnchorMissing) as caught:
            patchwork.apply(lib.patch("f", required("return y + 1").remove()))
        assert f"where: {lib.path}, lines 1-2 (f)" in str(caught.value)


def test_a_multi_statement_pattern_is_compared_with_runs_of_statements() -> None:
    body = "        a = one(x)\n        b = two(a)\n        c = three(b)\n        return c\n"
    source = f"class Mixer:\n    def forward(self, x):\n{body}"
    error = missed(source, required("b = two(a)\nc = three(a)").remove())
    assert error.diff.split("\n") == ["  b = two(a)", "- c = three(a)", "+ c = three(b)"]
