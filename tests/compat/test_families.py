"""Every recurrent family of the installed transformers: documents of a packed row equal documents alone."""

from __future__ import annotations

import families
import pytest
import tiny
import torch
from alone import Case, assert_equal, assert_leaks, isolated, reference, run, stock

from patchwork.packing import isolate, restore
from patchwork.packing.families import released

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
