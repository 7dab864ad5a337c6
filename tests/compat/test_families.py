"""Every recurrent family of the installed transformers: documents of a packed row equal documents alone."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import families
import pytest
import tiny
import torch
import transformers
from alone import Case, assert_equal, assert_leaks, isolated, reference, run, stock

from patchwork.packing import IsolationError, isolate, probe, restore
from patchwork.packing.isolation import adopt
from patchwork.packing.models.families import released, written
from patchwork.packing.probing.tiny_models import shrink, tiny_model

# test_grid.py and test_isolation.py have these in all forms.
NAMES = [name for name in families.names() if name not in tiny.RECURRENT]
TWO_ROWS = ((7, 5, 9), (13, 8))


def packed(name, rows=((7, 5, 9),), total=None, form="positions", model=None):
    case = Case(name, rows, total=total)
    model = model or isolated(name)
    expected = reference(case)
    assert_equal(run(model, case, **case.form(form)), expected)
    assert_leaks(run(isolated(name), case), expected, case)


@pytest.mark.parametrize("rows", [((7, 5, 9),), ((1, 64, 65, 2),), TWO_ROWS], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_documents_equal_themselves_alone(name, rows):
    if name == "xlstm" and not released("5.0") and max(map(max, rows)) >= 64:
        pytest.skip("upstream's code for whole chunks of 64 does not run in this release")
    packed(name, rows)


@pytest.mark.parametrize("form", ["full", "seq_idx"])
@pytest.mark.parametrize("name", NAMES)
def test_a_tail_and_rows_of_different_lengths(name, form):
    packed(name, ((7, 5, 9), (13,)), total=24, form=form)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing(name, reentrant):
    model = families.duplicate(isolated(name))
    if not model.supports_gradient_checkpointing:
        pytest.skip("upstream does not checkpoint this family")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    packed(name, TWO_ROWS, form="positions", model=model)


@pytest.mark.parametrize("name", NAMES)
def test_eager_attention(name):
    case = Case(name, TWO_ROWS, attention="eager")
    model, expected = isolated(name, "eager"), reference(case)
    assert_equal(run(model, case, **case.form()), expected)
    assert_leaks(run(model, case), expected, case)


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_calls_are_bit_identical(name):
    original = stock(name)
    model = families.duplicate(original)
    isolate(model)
    tokens = Case(name, TWO_ROWS).tokens
    mask = (torch.arange(21) < torch.tensor([[21], [15]])).long()
    for arguments in (
        {},
        {"attention_mask": mask},
        {"attention_mask": mask.flip(1)},
        {"position_ids": torch.arange(21).expand(2, -1)},
    ):
        for training in (True, False):
            with torch.no_grad():
                ours, theirs = (
                    each.train(training)(input_ids=tokens, use_cache=False, **arguments).logits for each in (model, original)
                )
            assert torch.equal(ours, theirs)
    original.train()
    restore(model)
    assert not any("_patchwork_isolation" in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", NAMES)
def test_generation_is_bit_identical(name):
    model = families.duplicate(isolated(name)).eval()
    original = families.duplicate(stock(name)).eval()
    prompt = Case(name).tokens

    def generate(each):
        return each.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)

    try:
        theirs = generate(original)
    except (ValueError, RuntimeError, AttributeError, TypeError) as error:
        pytest.skip(f"stock cannot do this in this release: {error}")
    assert torch.equal(generate(model), theirs)


@pytest.mark.skipif("recurrent_gemma" not in NAMES, reason="not in this release")
def test_a_window_that_is_longer_than_the_row():
    """Before 5.4 the family's masks are as wide as its window, 2,048 by default."""
    settings = copy.deepcopy(families.config("recurrent_gemma"))
    settings.attention_window_size = 2048
    model = tiny_model(settings)
    isolate(model)
    assert probe(model, (7, 5, 9)).passed


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("falcon_h1", "lfm2", "minimax", "recurrent_gemma")])
def test_a_text_plane_is_enough_for_families_without_planes(name):
    case = Case(name)
    planes = case.form()["position_ids"].expand(4, 1, -1)
    assert_equal(run(isolated(name), case, position_ids=planes), reference(case))


@pytest.mark.skipif(not hasattr(transformers, "InklingConfig"), reason="not in this release")
@pytest.mark.skipif(find_spec("scipy") is None, reason="its vision tower needs scipy")
def test_masks_that_a_model_prepares_for_its_own_backbone_are_made_anew():
    model = tiny_model(shrink(transformers.InklingConfig()))
    isolate(model)
    assert probe(model, (7, 5, 9)).passed


@pytest.mark.skipif(not hasattr(transformers, "CpmAntConfig"), reason="not in this release")
def test_a_guard_reaches_models_that_take_positions_by_keyword_only():
    config = transformers.CpmAntConfig(
        vocab_size=99, hidden_size=16, num_attention_heads=2, dim_head=8, dim_ff=16, num_hidden_layers=1, prompt_length=2
    )
    model = transformers.CpmAntForCausalLM(config)
    for module in (model.base_model, model):
        adopt(module)
    with pytest.raises(IsolationError, match="3 documents"):
        model(input_ids=Case().tokens, **Case().form())


def test_a_decorator_that_hides_what_it_wraps_is_seen_through():
    """As in transformers 5.13 to 5.15, around the forward of mixers."""
    scope = {"__name__": "transformers.integrations.accelerate"}
    text = (
        "def around(forward_func):\n    def wrapped(self, *args):\n        return forward_func(self, *args)\n    return wrapped\n"
    )
    exec(text, scope)

    def forward(self, hidden_states):
        return hidden_states

    assert written(scope["around"](forward)) is forward
    assert written(forward) is forward
