"""Every way to say where documents are, with every attention, number of rows and kind of checkpointing, in each release."""

from __future__ import annotations

import copy
import functools

import pytest
from alone import DENSE, FORMS, NAMES, Case, assert_equal, assert_leaks, isolated, reference, run

MAIN_FORMS = ["positions", "full", "cumulative", "seq_idx"]
# One row each, and what stands in the row below it.
BELOW = {(7, 5, 9): (13, 8), (1, 64, 65, 2): (100, 32), (300, 3, 1): (4, 290, 10)}
CHECKPOINTING = {"off": None, "reentrant": True, "not reentrant": False}


@functools.cache
def checked_reference(case: Case):
    """Documents alone, once the control has shown that the rows leak without boundaries."""
    expected = reference(case)
    assert_leaks(run(isolated(case.name, case.attention), case), expected, case)
    return expected


@functools.cache
def checkpointed(attention: str, checkpointing: str):
    model = isolated(DENSE, attention)
    if CHECKPOINTING[checkpointing] is not None:
        model = copy.deepcopy(model)
        model.gradient_checkpointing_enable({"use_reentrant": CHECKPOINTING[checkpointing]})
        model.enable_input_require_grads()
    return model


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("form", MAIN_FORMS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_arguments_rows_and_checkpointing(attention, form, rows, checkpointing):
    case = Case(DENSE, ((7, 5, 9), BELOW[7, 5, 9])[:rows], attention)
    model, expected = checkpointed(attention, checkpointing), checked_reference(case)
    layers = []
    hook = model.model.layers[0].input_layernorm.register_forward_hook(lambda *_: layers.append(1))
    found = run(model, case, **case.form(form))
    hook.remove()
    assert_equal(found, expected)
    assert len(layers) == (1 if checkpointing == "off" else 2), "whether the layer was run again in the backward pass"


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("lengths", BELOW, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_family_around_the_chunk_length(name, lengths, rows):
    case = Case(name, (lengths, BELOW[lengths])[:rows])
    for form in FORMS if lengths == (7, 5, 9) else MAIN_FORMS:
        assert_equal(run(isolated(name), case, **case.form(form)), checked_reference(case))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("below", [(13,), (2, 2), (13, 7)])
def test_rows_of_different_lengths(form, below):
    case = Case(DENSE, ((7, 5, 9), below), total=21)
    assert_equal(run(isolated(DENSE), case, **case.form(form)), checked_reference(case))


@pytest.mark.parametrize("name", NAMES)
def test_eager_attention(name):
    case = Case(name, attention="eager")
    assert_equal(run(isolated(name, "eager"), case, **case.form()), checked_reference(case))
