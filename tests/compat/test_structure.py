"""Models whose code is not part of transformers: known by their structure, or refused naming the part that is not."""

from __future__ import annotations

import copy
import pickle

import elsewhere
import families
import pytest
from alone import Case, assert_equal, assert_leaks, reference, run

from patchwork.packing import IsolationError, isolate
from patchwork.packing.decision import decide
from patchwork.packing.isolation import adopt
from patchwork.packing.models.families import released

# Attention of jamba is written by hand before 5.0.
KNOWN = [name for name in ("qwen3_next", "falcon_h1", "bamba", "lfm2", "jamba") if name != "jamba" or released("5.0")]
TWO_ROWS = ((7, 5, 9), (13, 8))


@pytest.mark.parametrize("rows", [((7, 5, 9),), TWO_ROWS], ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_mixers_and_attention_of_known_shapes_run_side_by_side(name, rows, tmp_path):
    model = elsewhere.build(name, elsewhere.module(name, tmp_path))
    kinds = {part.kind: part.way for part in isolate(model) if part.role == "mixer"}
    assert "OtherAttention" in kinds
    assert set(kinds.values()) == {"document batching"}
    case = Case(name, rows)
    expected = reference(case)
    assert_equal(run(model, case, **case.form()), expected)
    assert_leaks(run(model, case), expected, case)


@pytest.mark.parametrize(
    ("name", "before", "after", "part"),
    [
        ("bamba", "padding=self.conv_kernel_size - 1", "padding=(self.conv_kernel_size - 1) // 2", "OtherMixer"),
        ("lfm2", "self.is_causal = True", "self.is_causal = False", "OtherAttention"),
        ("lfm2", "self.w1(x)", "self.w1(x.roll(1, 1))", "OtherMLP"),
        ("rwkv", "class OtherFeedForward", "class OtherFeedForward", "ZeroPad2d"),
    ],
    ids=["a convolution that looks ahead", "attention that is not causal", "a token shift", "a shift module"],
)
def test_a_part_of_no_known_shape_refuses_the_model(name, before, after, part, tmp_path):
    code = elsewhere.module(name, tmp_path, (before, after))
    model = code.OtherForCausalLM(families.build(name).config)
    with pytest.raises(IsolationError, match=f"of no known shape: .*{part}"):
        isolate(model)
    for module in (model.base_model, model):
        adopt(module)
    case = Case(name)
    with pytest.raises(IsolationError, match="3 documents"):
        model(input_ids=case.tokens, **case.form("full"))


def test_it_survives_a_copy_and_a_pickle(tmp_path):
    name = "lfm2"
    model = elsewhere.build(name, elsewhere.module(name, tmp_path))
    isolate(model)
    case = Case(name)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_equal(run(again, case, **case.form()), reference(case))


def test_a_built_model_is_decided_on_by_its_structure(tmp_path):
    name = "lfm2"
    model = elsewhere.build(name, elsewhere.module(name, tmp_path))
    assert decide(model).packing
    code = elsewhere.module(name, tmp_path / "shifted", ("self.w1(x)", "self.w1(x.roll(1, 1))"))
    assert "OtherMLP" in decide(code.OtherForCausalLM(model.config)).reasons[0]
