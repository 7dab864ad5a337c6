"""The measurement sees a leak where there is one, passes where there is none, and leaves the model as it was."""

from __future__ import annotations

import copy
import json

import pytest
import tiny
import torch

from patchwork.packing import BoundariesError, isolate, measure_leaks


@pytest.fixture(scope="module")
def stock():
    return tiny.build("qwen3_next")


@pytest.fixture(scope="module")
def isolated(stock):
    model = copy.deepcopy(stock)
    isolate(model)
    return model


def test_a_stock_model_fails_and_an_isolated_one_passes(stock, isolated):
    before, after = measure_leaks(stock), measure_leaks(isolated)
    assert not before.passed
    assert after.passed
    assert before.worst > 0.1 > 1e-5 > after.worst
    assert after.control.worst > 0.1
    assert after.control_backward.worst > 0.1


def test_the_matrix_shows_who_reaches_whom(stock, isolated):
    leaking = measure_leaks(stock, (7, 5, 9)).matrix
    assert [len(row) for row in leaking] == [3, 3, 3]
    for source in range(3):
        for reached in range(3):
            assert (leaking[source][reached] > 1e-3) == (source < reached)
    tight = measure_leaks(isolated, (7, 5, 9)).matrix
    assert max(max(row) for row in tight) < 1e-5


def test_gradients_name_the_worst_parameter(stock):
    report = measure_leaks(stock, (4, 6))
    assert report.backward.parameter in dict(stock.named_parameters())
    assert report.backward.worst > 0.01
    assert report.forward.by_document[0] < 1e-5 < report.forward.by_document[1]


def test_a_leak_that_hides_does_not_pass():
    faint = tiny.build("qwen3_next")
    with torch.no_grad():
        for layer in faint.model.layers:
            for name, parameter in layer.named_parameters():
                if "norm" not in name:
                    parameter.mul_(1e-4)
    isolate(faint)
    report = measure_leaks(faint)
    assert report.worst < 1e-4
    assert not report.passed, "the control cannot see a leak, so nothing was shown"


def test_given_tokens_and_full_arguments(isolated):
    report = measure_leaks(isolated, [torch.arange(5, 12), torch.arange(20, 25)], arguments="full")
    assert report.passed
    assert report.documents == (7, 5)


def test_the_model_is_left_as_it_was(isolated):
    model = copy.deepcopy(isolated).train()
    model.model.layers[0].eval()
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    measure_leaks(model)
    assert model.training
    assert not model.model.layers[0].training
    assert model.lm_head.weight.grad.eq(1).all()
    assert model.model.norm.weight.grad is None


def test_the_report_is_plain_data(isolated):
    plain = json.loads(json.dumps(measure_leaks(isolated).as_dict()))
    assert plain["passed"] is True
    assert len(plain["matrix"]) == 3
    assert set(plain) >= {"documents", "matrix", "forward", "backward", "control", "worst", "passed"}


def test_one_document_cannot_leak(isolated):
    with pytest.raises(BoundariesError, match="needs two documents"):
        measure_leaks(isolated, (7,))
