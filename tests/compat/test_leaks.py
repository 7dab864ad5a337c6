"""The measurement sees a leak where there is one, passes where there is none, and leaves the model as it was."""

from __future__ import annotations

import copy
import itertools
import json
from types import SimpleNamespace

import pytest
import tiny
import torch

from patchwork.packing import BoundariesError, isolate, probe
from patchwork.packing.runtime import mixer_forward
from patchwork.packing.runtime.document_batching import side_by_side

ROUNDING = 1e-4  # as `probe` has it for float32: ten times and more what is measured here, a thousandth of what leaks here


@pytest.fixture(scope="module")
def stock():
    return tiny.build("qwen3_next")


@pytest.fixture(scope="module")
def isolated(stock):
    model = copy.deepcopy(stock)
    isolate(model)
    return model


def test_a_stock_model_fails_and_an_isolated_one_passes(stock, isolated):
    before, after = probe(stock), probe(isolated)
    assert not before.passed
    assert after.passed
    assert before.worst > 0.1 > ROUNDING > after.worst
    assert after.control.worst > 0.1
    assert after.control_backward.worst > 0.1


def test_the_matrix_shows_who_reaches_whom(stock, isolated):
    leaking = probe(stock, (7, 5, 9)).matrix
    assert [len(row) for row in leaking] == [3, 3, 3]
    for source in range(3):
        for reached in range(3):
            assert (leaking[source][reached] > 1e-3) == (source < reached)
    tight = probe(isolated, (7, 5, 9)).matrix
    assert max(max(row) for row in tight) < ROUNDING


def test_gradients_name_the_worst_parameter(stock):
    report = probe(stock, (4, 6))
    assert report.backward.parameter in dict(stock.named_parameters())
    assert report.backward.worst > 0.01
    assert report.forward.by_document[0] < ROUNDING < report.forward.by_document[1]


@pytest.mark.parametrize("scale", [1e-3, 1e-4])
def test_a_leak_that_hides_does_not_pass(scale):
    """Weights of 0.02 are 0.2 of the test models'; these are far smaller, and what leaks is too small to see."""
    faint = tiny.build("qwen3_next")
    with torch.no_grad():
        for parameter in faint.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2 * scale)
    leaking = probe(faint)
    assert leaking.forward.worst < leaking.noise, "a leaking model looks tight"
    assert not leaking.passed
    isolate(faint)
    report = probe(faint)
    assert report.worst < ROUNDING
    assert not report.passed, "the control cannot see a leak, so nothing was shown"


def test_the_usual_weights_are_large_enough():
    usual = tiny.build("qwen3_next")
    with torch.no_grad():
        for parameter in usual.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.2)
    assert not probe(usual).passed
    isolate(usual)
    assert probe(usual).passed


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
    report = probe(model)
    assert not report.passed
    assert report.forward.worst < ROUNDING
    assert max(max(row) for row in report.matrix) < ROUNDING
    assert report.backward.worst > 1e-3
    # What comes after the fault in the forward pass cannot be touched by it.
    assert report.backward.parameter in (parameters or dict(model.named_parameters()))
    assert report.backward.parameter not in ("lm_head.weight", "model.norm.weight")


@pytest.mark.parametrize("faulty", [{0, 1, 2}, {0}, {1}, {2}], ids=str)
def test_mixers_that_ignore_boundaries_are_found(isolated, monkeypatch, faulty):
    calls = itertools.count()

    def some(call, boundaries, hidden, per_token=None, **masks):
        if next(calls) % 3 in faulty:
            return call(hidden, dict(per_token or {}))
        return side_by_side(call, boundaries, hidden, per_token, **masks)

    monkeypatch.setattr(mixer_forward, "side_by_side", some)
    report = probe(isolated, (7, 5, 9))
    assert not report.passed
    assert report.forward.by_document[0] < ROUNDING
    assert min(report.forward.by_document[1:]) > report.noise
    for source, row in enumerate(report.matrix):
        assert max(row[: source + 1]) < ROUNDING, "no document reaches one before it"
        # One mixer's state may fade within the document between two others.
        assert all(value > report.noise for value in (row[source + 1 :] if len(faulty) == 3 else row[source + 1 : source + 2]))


# ---- faults of a kernel, in a model of two layers that hands boundaries to it ---------------------------------------


def scan(values, cu_seqlens):
    """What a varlen kernel does: a state that fades along the row and is reset where a document begins."""
    starts = set(cu_seqlens.tolist())
    state, rows = torch.zeros_like(values[:, 0]), []
    for at in range(values.shape[1]):
        state = values[:, at] + (0 if at in starts else 0.9) * state
        rows.append(state)
    return torch.stack(rows, dim=1)


def ignores(values, cu_seqlens):
    """Accepts the boundaries, and does as if there were none."""
    return scan(values, torch.tensor([0]))


def ignores_the_last(values, cu_seqlens):
    """Does not see where the last document begins."""
    return scan(values, cu_seqlens[:-2])


def looks_ahead(values, cu_seqlens):
    """Adds to each token a share of the row's last one."""
    return scan(values, cu_seqlens) + 0.1 * values[:, -1:]


def leaks_backward(values, cu_seqlens):
    """Right, but for its backward pass."""
    return MixesGradients.apply(scan(values, cu_seqlens))


class Packs(torch.nn.Module):
    def __init__(self, *kernels):
        super().__init__()
        torch.manual_seed(0)
        self.kernels = kernels
        self.embed = torch.nn.Embedding(50, 16)
        self.mixers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in kernels)
        self.head = torch.nn.Linear(16, 50)

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, cu_seq_lens_q=None):
        ends = torch.tensor([0, input_ids.shape[1]]) if cu_seq_lens_q is None else cu_seq_lens_q
        hidden = self.embed(input_ids)
        for kernel, mixer in zip(self.kernels, self.mixers, strict=True):
            hidden = hidden + kernel(mixer(hidden).tanh(), ends)
        return SimpleNamespace(logits=self.head(hidden))


def reached(report):
    """Which document reaches which other."""
    return {(i, j) for i, row in enumerate(report.matrix) for j, value in enumerate(row) if value > report.noise}


def test_a_kernel_that_uses_boundaries_passes():
    report = probe(Packs(scan, scan), arguments="full")
    assert report.passed
    assert reached(report) == set()


def test_a_kernel_that_accepts_boundaries_and_ignores_them_is_found():
    report = probe(Packs(ignores, ignores), arguments="full")
    assert not report.passed
    assert reached(report) == {(0, 1), (0, 2), (1, 2)}
    assert report.forward.worst == pytest.approx(report.control.worst, rel=0.01)


def test_a_leak_of_the_last_layer_alone_is_found():
    report = probe(Packs(scan, ignores), arguments="full")
    assert not report.passed
    assert {(0, 1), (1, 2)} <= reached(report)
    assert report.backward.worst > report.noise


def test_a_leak_into_the_end_of_the_row_alone_is_found():
    report = probe(Packs(scan, ignores_the_last), arguments="full")
    assert not report.passed
    assert reached(report) == {(1, 2)}
    assert report.forward.by_document[1] < report.noise < report.forward.by_document[2]


def test_a_leak_from_later_documents_to_earlier_ones_is_found():
    report = probe(Packs(looks_ahead), arguments="full")
    assert not report.passed
    assert reached(report) == {(2, 0), (2, 1)}


def test_a_kernel_with_a_wrong_backward_pass_is_found_and_the_parameter_before_it_named():
    report = probe(Packs(scan, leaks_backward), arguments="full")
    assert not report.passed
    assert reached(report) == set()
    assert report.forward.worst < 1e-6
    assert report.backward.parameter in ("embed.weight", "mixers.0.weight", "mixers.0.bias", "mixers.1.weight", "mixers.1.bias")


def test_a_model_that_is_not_told_of_documents_leaks():
    """``cu_seq_lens_q`` is not among restarting positions, and what a model does not take it is not given."""
    assert not probe(Packs(scan), arguments="positions").passed


# ---- the report -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 8, 20])
def test_numbers_that_are_not_finite_do_not_pass(isolated, where):
    model = copy.deepcopy(isolated)

    def spoil(module, arguments, output):
        if output.shape[1] == 21:
            output = output.clone()
            output[0, where] = float("nan")
        return output

    model.lm_head.register_forward_hook(spoil)
    report = probe(model)
    assert report.worst == float("inf")
    assert not report.passed


def test_given_tokens_and_full_arguments(isolated):
    report = probe(isolated, [torch.arange(5, 12), torch.arange(20, 25)], arguments="full")
    assert report.passed
    assert report.documents == (7, 5)


def test_the_model_is_left_as_it_was(isolated):
    model = copy.deepcopy(isolated).train()
    model.model.layers[0].eval()
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    probe(model)
    assert model.training
    assert not model.model.layers[0].training
    assert model.lm_head.weight.grad.eq(1).all()
    assert model.model.norm.weight.grad is None


def test_the_report_is_plain_data(isolated):
    plain = json.loads(json.dumps(probe(isolated).as_dict()))
    assert plain["passed"] is True
    assert len(plain["matrix"]) == 3
    assert set(plain) >= {"documents", "matrix", "forward", "backward", "control", "worst", "shown", "passed", "ways"}
    assert plain["ways"]["Qwen3NextGatedDeltaNet"] == "document batching"


def test_one_document_cannot_leak(isolated):
    with pytest.raises(BoundariesError, match="needs two documents"):
        probe(isolated, (7,))


def test_arguments_are_of_two_kinds(isolated):
    with pytest.raises(BoundariesError, match='give "positions" or "full"'):
        probe(isolated, arguments="all")
