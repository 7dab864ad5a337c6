"""A required anchor missed: everything that the error says."""

from __future__ import annotations

import pickle
import textwrap

import pytest

import patchwork
from patchwork import AnchorMissing, AnchorMoved, Patch, one_of, parameter, required, rewrite

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
    assert "- self.causal_conv1d_fn($$$ARGS, seq_idx=None)" in error.diff
    assert "+     seq_idx=kwargs.get('cu')" in error.diff
    assert "weight=self.conv1d.weight.squeeze(1)" in error.diff


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
    assert "`patchwork check pack.mixer --against 'transformers>=4.57,<5.9'`" in error.hint
    assert "`patchwork check pack.mixer --against 'lib'`" in missed(MIXER.format("cu"), SEQ_IDX).hint


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
