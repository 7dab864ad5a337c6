"""The doubles of the kernels: right on documents, wrong where they should be, strict, and reached in every era."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import doubles
import pytest
import tiny
import torch
from alone import limit
from doubles.inputs import BY_LENGTH, BY_ROW, KERNELS, Tensors, conv_inputs, delta_inputs, random, split_inputs
from doubles.models import EVERY_KERNEL_ALONE, MODELS, SMALL, build

import patchwork
from patchwork.packing import Boundaries

LENGTHS = (5, 9, 1, 8)
LONG = 70  # more than a chunk of the torch rules
CLOSE = 1e-4  # relative to the largest value of the reference; rounding moves a kernel by 4e-6, a leak by 100 times the limit


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def put(conv: doubles.Variant | None = "exact", scan: doubles.Variant | None = "exact") -> None:
        doubles.install(monkeypatch, tmp_path, conv, scan)

    return put


# ---- each kernel by itself --------------------------------------------------------------------------------------


def boundaries(name: str, rows: int = 1) -> dict[str, torch.Tensor]:
    """The argument that says where the documents of LENGTHS begin."""
    found = Boundaries.from_seq_lens([LENGTHS] * rows)
    argument = KERNELS[name][2]
    return {argument: found.seq_idx if argument == "seq_idx" else found.cu_seqlens}


def called(name: str, inputs: Tensors, **arguments: Any) -> torch.Tensor:
    function = doubles.kernel(name)
    assert function is not None
    result = function(**inputs, **{**KERNELS[name][1], **arguments})
    return result[0] if isinstance(result, tuple) else result


def piece(name: str, inputs: Tensors, row: int, start: int, end: int) -> Tensors:
    """The inputs of one document."""
    along = 2 if name == "causal_conv1d_fn" else 1
    names = KERNELS[name][3].split()
    return {
        key: value[row : row + 1].narrow(along, start, end - start) if key in names else value for key, value in inputs.items()
    }


def alone(name: str, inputs: Tensors, rows: int = 1) -> torch.Tensor:
    """The documents of LENGTHS one by one, put together again."""
    ends = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    along = 2 if name == "causal_conv1d_fn" else 1
    done = [
        torch.cat([called(name, piece(name, inputs, row, start, end)) for start, end in pairwise(ends)], along)
        for row in range(rows)
    ]
    return torch.cat(done)


def results(run: Callable[[Tensors], torch.Tensor], inputs: Tensors) -> Tensors:
    """The output, and the gradient of each input."""
    # Detached and cloned, the layout is kept.
    leaves = {key: value.detach().clone(memory_format=torch.preserve_format).requires_grad_() for key, value in inputs.items()}
    output = run(leaves)
    gradients = torch.autograd.grad((output * random(*output.shape, seed=9)).sum(), list(leaves.values()))
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


def differences(ours: Tensors, theirs: Tensors) -> dict[str, float]:
    """Largest difference of each, relative to the largest value of its reference."""
    assert ours.keys() == theirs.keys()
    with torch.no_grad():
        return {key: float((ours[key] - theirs[key]).abs().max() / theirs[key].abs().max().clamp_min(1e-3)) for key in theirs}


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    found = differences(ours, theirs)
    assert max(found.values()) < CLOSE, found


@pytest.mark.parametrize(("name", "rows"), [*((name, 1) for name in KERNELS), *((name, 2) for name in BY_ROW)])
def test_documents_in_a_row_equal_documents_alone_and_without_boundaries_they_do_not(install, name, rows):
    install()
    inputs = KERNELS[name][0](rows, sum(LENGTHS))
    expected = results(lambda leaves: alone(name, leaves, rows), inputs)
    assert_same(results(lambda leaves: called(name, leaves, **boundaries(name, rows)), inputs), expected)
    leaky = differences(results(lambda leaves: called(name, leaves), inputs), expected)
    row = KERNELS[name][3].split()
    assert all(leaky[key] > 100 * CLOSE for key in ("output", *row)), leaky


@pytest.mark.parametrize("name", KERNELS)
def test_one_that_ignores_its_boundaries_takes_them_and_leaks_all_the_same(install, name):
    install("ignores", "ignores")
    inputs = KERNELS[name][0](1, sum(LENGTHS))
    assert torch.equal(called(name, inputs, **boundaries(name)), called(name, inputs))
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        called(name, inputs, **{KERNELS[name][2]: boundaries(name)[KERNELS[name][2]][..., :-1]})


@pytest.mark.parametrize("name", KERNELS)
def test_one_whose_argument_was_renamed_works_by_the_new_name_alone(install, name):
    install()
    inputs = KERNELS[name][0](1, sum(LENGTHS))
    expected = called(name, inputs, **boundaries(name))
    install("renamed", "renamed")
    argument = KERNELS[name][2]
    other = {"seq_idx": "sequence_ids", "cu_seqlens": "offsets"}[argument]
    assert torch.equal(called(name, inputs, **{other: boundaries(name)[argument]}), expected)
    parameters = inspect.signature(doubles.kernel(name)).parameters
    assert argument not in parameters
    if "kwargs" in parameters:  # then the old name is swallowed
        assert torch.equal(called(name, inputs, **boundaries(name)), called(name, inputs))
    else:
        with pytest.raises(TypeError, match=argument):
            called(name, inputs, **boundaries(name))


def test_a_package_that_is_absent_cannot_be_imported_and_the_other_can(install):
    install(conv=None)
    assert doubles.kernel("causal_conv1d_fn") is None
    assert doubles.kernel("chunk_kda") is not None
    with pytest.raises(AssertionError, match="causal_conv1d, which is not installed"):
        called("mamba_split_conv1d_scan_combined", split_inputs(1, 8))
    install(scan=None)
    assert doubles.kernel("causal_conv1d_fn") is not None
    assert [doubles.kernel(name) for name in ("chunk_kda", "selective_scan_fn")] == [None, None]


def test_nothing_is_left_behind(tmp_path):
    def modules() -> dict[str, Any]:
        return {name: module for name, module in sys.modules.items() if name.split(".")[0] in doubles.PACKAGES}

    path, before = list(sys.path), modules()
    with pytest.MonkeyPatch.context() as monkeypatch:
        doubles.install(monkeypatch, tmp_path)
        for name in KERNELS:
            doubles.kernel(name)
        assert importlib.metadata.version("fla-core") == "0.6.0"
    assert path == sys.path
    assert modules() == before


# ---- what they refuse -------------------------------------------------------------------------------------------


SEQ_IDX = Boundaries.from_seq_lens(LENGTHS).seq_idx
TWICE = SEQ_IDX.repeat(1, 2)[:, ::2]  # of the right shape, every other element of a longer one


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"seq_idx": SEQ_IDX.long()}, RuntimeError, "int32"),
        ({"seq_idx": TWICE}, RuntimeError, "contiguous"),
        ({"seq_idx": SEQ_IDX[:, :-1].contiguous()}, RuntimeError, r"\(1, 22\), not \(1, 23\)"),
        ({"seq_idx": SEQ_IDX[0]}, RuntimeError, r"\(23,\), not \(1, 23\)"),
        ({"seq_idx": SEQ_IDX, "x": random(1, 16, 23, seed=0)}, RuntimeError, "channels last"),
        ({"seq_idx": SEQ_IDX, "initial_states": random(1, 16, 3, seed=0)}, AssertionError, "initial states"),
        ({"seq_idx": SEQ_IDX, "return_final_states": True}, AssertionError, "final states"),
        ({"x": random(1, 23, 24, seed=0)[..., :16].transpose(1, 2)[:, ::2], "weight": random(8, 4, seed=1)}, None, ""),
        (
            {"x": random(1, 23, 12, seed=0).transpose(1, 2), "weight": random(12, 4, seed=1), "bias": None},
            RuntimeError,
            "12 channels",
        ),
        ({"x": random(1, 23, 20, seed=0)[..., :16].transpose(1, 2)}, RuntimeError, "strides"),
        ({"weight": random(16, 5, seed=1)}, RuntimeError, "width of 5"),
        ({"weight": random(8, 4, seed=1)}, RuntimeError, "8 channels"),
        ({"bias": random(16, seed=2).double()}, RuntimeError, "bias"),
        ({"activation": "gelu"}, NotImplementedError, "gelu"),
    ],
)
def test_the_convolution_refuses(install, changes, error, told):
    install()
    changes = dict(changes)
    inputs = {**conv_inputs(1, 23), **{key: changes.pop(key) for key in ("x", "weight", "bias") if key in changes}}
    if error is None:  # neither layout: the real one makes a copy
        called("causal_conv1d_fn", {**inputs, "bias": None})
        return
    with pytest.raises(error, match=told):
        called("causal_conv1d_fn", inputs, **changes)


@pytest.mark.parametrize("name", BY_LENGTH)
@pytest.mark.parametrize(
    ("cu_seqlens", "told"),
    [
        (torch.tensor([0, 5, 22]), "do not lead from 0 to 23"),
        (torch.tensor([1, 5, 23]), "do not lead from 0 to 23"),
        (torch.tensor([0, 24]), "do not lead from 0 to 23"),
        (torch.tensor([0, 9, 5, 23]), "do not lead from 0 to 23"),
        (torch.tensor([0]), "do not lead from 0 to 23"),
        (torch.tensor([0.0, 5.0, 23.0]), "not integers"),
        (torch.tensor([[0, 5, 23]]), "in one dimension"),
    ],
)
def test_the_delta_rules_refuse_lengths_that_do_not_fit(install, name, cu_seqlens, told):
    install()
    with pytest.raises(ValueError, match=told):
        called(name, KERNELS[name][0](1, 23), cu_seqlens=cu_seqlens)


@pytest.mark.parametrize("name", BY_LENGTH)
def test_the_delta_rules_refuse_two_rows_and_more_documents_than_fit_a_launch(install, name):
    install()
    with pytest.raises(ValueError, match="batch of 2"):
        called(name, KERNELS[name][0](2, 23), **boundaries(name))
    most = 65_535 // 4
    inputs = KERNELS[name][0](1, 1)
    full = torch.zeros(most + 1, dtype=torch.int32)
    full[-1] = 1
    assert torch.allclose(called(name, inputs, cu_seqlens=full), called(name, inputs))
    with pytest.raises(RuntimeError, match=f"{most + 1} documents"):
        called(name, inputs, cu_seqlens=torch.cat([full[:1], full]))


def test_the_delta_rules_refuse_heads_and_states_that_do_not_go_together(install):
    install()
    inputs = delta_inputs(1, 23)
    for changes, told in [
        ({"v": inputs["v"][:, :, :3]}, "no multiple"),
        ({"k": inputs["k"][:, :, :1]}, "keys"),
        ({"g": inputs["g"][..., :2]}, "gates"),
    ]:
        with pytest.raises(ValueError, match=told):
            called("chunk_gated_delta_rule", {**inputs, **changes})
    with pytest.raises(ValueError, match="1 initial states for 4 documents"):
        called("chunk_gated_delta_rule", inputs, initial_state=torch.zeros(1, 4, 8, 6), **boundaries("chunk_gated_delta_rule"))


@pytest.mark.parametrize("name", [name for name in BY_ROW if name != "causal_conv1d_fn"])
@pytest.mark.parametrize(
    ("seq_idx", "told"), [(SEQ_IDX.long(), "int32"), (SEQ_IDX[:, :-1], r"\(1, 22\)"), (SEQ_IDX[0], r"\(23,\)")]
)
def test_the_scans_of_mamba_2_refuse(install, name, seq_idx, told):
    install()
    with pytest.raises(AssertionError, match=told):
        called(name, KERNELS[name][0](1, 23), seq_idx=seq_idx)


def test_the_fusion_refuses_documents_where_its_rows_are_no_multiple_of_8(install):
    install()
    inputs = split_inputs(1, 23)
    four = {name: inputs[name][:4] for name in ("A", "D", "dt_bias")}
    inputs = {**inputs, **four, "zxbcdt": random(1, 23, 48 + 64 + 4, seed=0)}
    with pytest.raises(RuntimeError, match="channels last"):
        called("mamba_split_conv1d_scan_combined", inputs, headdim=12, seq_idx=SEQ_IDX)
    assert called("mamba_split_conv1d_scan_combined", inputs, headdim=12).isfinite().all()


@pytest.mark.parametrize("name", ["selective_scan_fn", "mamba_inner_fn"])
def test_the_scans_of_mamba_1_have_no_argument_for_boundaries(install, name):
    install()
    parameters = inspect.signature(doubles.kernel(name)).parameters
    assert not {"seq_idx", "cu_seqlens", "cu_seq_lens_q", "kwargs"} & set(parameters)


@pytest.mark.parametrize("name", ["causal_conv1d_update", "selective_state_update"])
def test_they_do_not_decode(install, name):
    install()
    with pytest.raises(NotImplementedError, match="does not decode"):
        doubles.kernel(name)(*[torch.ones(1, 8, 4)] * 6)


# ---- as packages ------------------------------------------------------------------------------------------------

HOMES = {
    "causal_conv1d_fn": "causal_conv1d.causal_conv1d_interface",
    "chunk_gated_delta_rule": "fla.ops.gated_delta_rule.chunk",
    "fused_recurrent_gated_delta_rule": "fla.ops.gated_delta_rule.fused_recurrent",
    "chunk_kda": "fla.ops.kda.chunk",
    "mamba_chunk_scan_combined": "mamba_ssm.ops.triton.ssd_combined",
    "mamba_split_conv1d_scan_combined": "mamba_ssm.ops.triton.ssd_combined",
}


@pytest.fixture
def reverted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path / "cache"))
    yield
    patchwork.revert()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.usefixtures("reverted")
def test_a_source_patch_goes_into_the_kernel_under_its_decorators(install, name):
    install()
    function = doubles.kernel(name)
    assert inspect.unwrap(function).__module__ == HOMES[name]
    assert f"def {name}(" in inspect.getsource(inspect.unwrap(function))
    patch = patchwork.Patch(
        name=f"test.{name}",
        target=f"{HOMES[name]}:{name}",
        reason="a test",
        edits=[patchwork.at_start("raise LookupError(sorted(locals())[0])")],
    )
    patchwork.apply(patch)
    with pytest.raises(LookupError):
        called(name, KERNELS[name][0](1, 23))


# ---- in models --------------------------------------------------------------------------------------------------


def model_results(model: torch.nn.Module, training: bool, **arguments: Any) -> Tensors:
    """Logits of one document, and the gradient of each parameter."""
    model.train(training)
    (tokens,) = tiny.documents([LONG])
    output: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        output.append(tiny.logits(model, input_ids=tokens, **arguments))
        return (output[0] * random(*output[0].shape, seed=9)).sum() / 10

    return {**tiny.gradients(model, loss), "output": output[0].detach()}


def model_differences(ours: Tensors, theirs: Tensors) -> tuple[float, float]:
    """Of the logits, and of the gradients."""
    return differences({"": ours["output"]}, {"": theirs["output"]})[""], tiny.worst_difference(ours, theirs)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_doubles_equals_the_model_on_torch(monkeypatch, install, name, training):
    install(None, None)
    model = build(name)
    doubles.use(monkeypatch, model)
    expected = model_results(model, training)
    moved = model_differences(model_results(tiny.nudged(model), training), expected)
    install()
    doubles.use(monkeypatch, model)
    found = model_results(model, training)
    assert {kernel for kernel, _ in doubles.calls()} == set(MODELS[name][2 if training else 3])
    for difference, by_rounding in zip(model_differences(found, expected), moved, strict=True):
        assert difference < limit(CLOSE, by_rounding)


def mixer_of(model: torch.nn.Module, name: str) -> Any:
    return next(part for part in model.modules() if type(part).__name__ == name)


def mixed(mixer: Any, hidden: torch.Tensor, **arguments: Any) -> torch.Tensor:
    result = mixer(hidden, **arguments)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_boundaries_reach_the_kernels_of_a_mixer_through_its_own_forward(monkeypatch, install, training):
    install()
    mixer = mixer_of(build("bamba").train(training), "BambaMixer")
    torch.nn.init.constant_(mixer.A_log, -2.0)  # so that its state lasts
    torch.nn.init.normal_(mixer.in_proj.weight, 0.0, 0.3)
    doubles.use(monkeypatch, mixer)
    hidden, seq_idx = random(1, sum(LENGTHS), 32, seed=0), boundaries("causal_conv1d_fn")["seq_idx"]
    apart = torch.cat([mixed(mixer, part) for part in tiny.split(hidden, LENGTHS)], 1)
    doubles.forget_calls()
    packed = mixed(mixer, hidden, seq_idx=seq_idx)
    assert [given is seq_idx for _, given in doubles.calls()] == [True] * (1 if training else 2)
    assert_same({"": packed}, {"": apart})
    install(conv="exact", scan="ignores")
    doubles.use(monkeypatch, mixer)
    assert differences({"": mixed(mixer, hidden, seq_idx=seq_idx)}, {"": apart})[""] > 100 * CLOSE


def test_one_kernel_alone_is_used_by_a_gated_delta_net_and_by_no_mamba_before_5_15(monkeypatch, install):
    install(scan=None)
    for name, expected in [
        ("qwen3_next", {"causal_conv1d_fn"}),
        ("bamba", {"causal_conv1d_fn"} if EVERY_KERNEL_ALONE else set()),
    ]:
        model = build(name).eval()
        doubles.use(monkeypatch, model)
        doubles.forget_calls()
        tiny.logits(model, input_ids=torch.ones(1, 8, dtype=torch.int64))
        assert {kernel for kernel, _ in doubles.calls()} == expected


@pytest.mark.parametrize("name", ["bamba", "lfm2"])
@pytest.mark.usefixtures("reverted")
def test_kernels_are_reached_below_a_wrapper_and_by_the_code_of_a_patch(monkeypatch, install, name):
    install()
    kind = {"bamba": "BambaMixer", "lfm2": "Lfm2ShortConv"}[name]
    mixer = mixer_of(build(name).eval(), kind)
    inner = type(mixer).forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    edits = [patchwork.at_start("raise LookupError('patched')")]
    target = f"{type(mixer).__module__}:{kind}.forward"
    patchwork.apply(patchwork.Patch(name="test.forward", target=target, reason="a test", edits=edits))
    monkeypatch.setattr(type(mixer), "forward", forward)
    doubles.use(monkeypatch, mixer)
    hidden = random(1, 8, 32, seed=0)
    with pytest.raises(LookupError, match="patched"):
        mixer(hidden)
    patchwork.revert()
    doubles.forget_calls()
    mixer(hidden)
    assert doubles.calls()[0][0] == "causal_conv1d_fn"


FRESH = """
import doubles, torch, transformers
config = transformers.Lfm2Config(**{settings})
transformers.Lfm2ForCausalLM(config)(torch.ones(1, 8, dtype=torch.int64))
print([name for name, _ in doubles.calls()])
"""


@pytest.mark.skipif(not EVERY_KERNEL_ALONE, reason="before 5.15 kernels are asked for where there is CUDA alone")
def test_a_new_process_finds_them_on_its_path(tmp_path):
    doubles.write(tmp_path, conv="exact", scan=None)
    code = FRESH.format(settings={**SMALL, **MODELS["lfm2"][1]})
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "['causal_conv1d_fn']", done.stderr
