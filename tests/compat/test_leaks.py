"""The measurement sees a leak where there is one, passes where there is none, and leaves the model as it was."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
import tiny
import torch

from patchwork.packing import BoundariesError, isolate, measure_leaks, transport
from patchwork.packing.batching import side_by_side


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


@pytest.mark.parametrize("scale", [1e-3, 1e-4])
def test_a_leak_that_hides_does_not_pass(scale):
    """Weights of 0.02 are 0.2 of the test models'; these are far smaller, and what leaks is too small to see."""
    faint = tiny.build("qwen3_next")
    with torch.no_grad():
        for parameter in faint.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2 * scale)
    leaking = measure_leaks(faint)
    assert leaking.forward.worst < leaking.noise, "a leaking model looks tight"
    assert not leaking.passed
    isolate(faint)
    report = measure_leaks(faint)
    assert report.worst < 1e-5
    assert not report.passed, "the control cannot see a leak, so nothing was shown"


def test_the_usual_weights_are_large_enough():
    usual = tiny.build("qwen3_next")
    with torch.no_grad():
        for parameter in usual.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2)
    assert not measure_leaks(usual).passed
    isolate(usual)
    assert measure_leaks(usual).passed


class MixesGradients(torch.autograd.Function):
    """The identity, whose backward pass adds to each token's gradient a share of all tokens' of its row."""

    @staticmethod
    def forward(context, hidden):
        return hidden.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + 0.1 * gradient.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("place", "parameters"),
    [("model.embed_tokens", ["model.embed_tokens.weight"]), ("model.layers.3.self_attn.q_proj", None)],
)
def test_a_fault_of_the_backward_pass_alone_is_found_and_its_parameter_named(isolated, place, parameters):
    model = copy.deepcopy(isolated)
    model.get_submodule(place).register_forward_hook(lambda module, inputs, output: MixesGradients.apply(output))
    report = measure_leaks(model)
    assert not report.passed
    assert report.forward.worst < 1e-5
    assert max(max(row) for row in report.matrix) < 1e-5
    assert report.backward.worst > 1e-3
    # What comes after the fault in the forward pass cannot be touched by it.
    assert report.backward.parameter in (parameters or dict(model.named_parameters()))
    assert report.backward.parameter not in ("lm_head.weight", "model.norm.weight")


@pytest.mark.parametrize("faulty", [{0, 1, 2}, {0}, {1}, {2}], ids=str)
def test_mixers_that_ignore_boundaries_are_found(isolated, monkeypatch, faulty):
    calls = itertools.count()

    def some(call, boundaries, hidden, per_token=None):
        if next(calls) % 3 in faulty:
            return call(hidden, dict(per_token or {}))
        return side_by_side(call, boundaries, hidden, per_token)

    monkeypatch.setattr(transport, "side_by_side", some)
    report = measure_leaks(isolated, (7, 5, 9))
    assert not report.passed
    assert report.forward.by_document[0] < 1e-5
    assert min(report.forward.by_document[1:]) > report.noise
    for source, row in enumerate(report.matrix):
        assert max(row[: source + 1]) < 1e-5, "no document reaches one before it"
        # One mixer's state may fade within the document between two others.
        assert all(value > report.noise for value in (row[source + 1 :] if len(faulty) == 3 else row[source + 1 : source + 2]))


@pytest.mark.parametrize("where", [0, 8, 20])
def test_numbers_that_are_not_finite_do_not_pass(isolated, where):
    model = copy.deepcopy(isolated)

    def spoil(module, arguments, output):
        if output.shape[1] == 21:
            output = output.clone()
            output[0, where] = float("nan")
        return output

    model.lm_head.register_forward_hook(spoil)
    report = measure_leaks(model)
    assert report.worst == float("inf")
    assert not report.passed


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
