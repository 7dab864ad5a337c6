"""Mixers that leave documents to varlen kernels: told of them, watched, and refused or batched where they are not.

The kernels are doubles in torch that hold to the real ones' contracts; all else is the code of the installed transformers.
"""

from __future__ import annotations

import copy
import importlib.metadata
import re
import sys
import types

import doubles
import families
import pytest
import tiny
import torch
from alone import Case, assert_equal, assert_leaks, of_each, run
from doubles import models

import patchwork
from patchwork.packing import IsolationError, isolate, probe, restore
from patchwork.packing.models import kernels
from patchwork.packing.models.kernels import closed_here
from patchwork.packing.models.mixers import MIXERS
from patchwork.packing.runtime import handshake, mixer_forward
from patchwork.selection import all_patches

# A family, and the mixer of it that has kernels in this release.
OPEN = {mixer.family: mixer for mixer in MIXERS if mixer.kernels and mixer.family in families.names() and not closed_here(mixer)}
HUB_ONLY = {"inkling"} if not families.released("5.15") else set()
NAMES = [name for name in OPEN if name not in HUB_ONLY]
SCANNING = [name for name in NAMES if "scan" in kernels.resets(OPEN[name])]
OPENING = re.compile(r"transformers\.(gated_delta|mamba2|short_conv|kda)")


def patches(name, watched):
    """What opens the mixers of a family and has kernels report. Not of other families: each test would try them on the sources
    of modules that it does not import."""
    own = f"transformers.models.{name}.modeling_{name}"
    opening = [patch for patch in all_patches() if patch.module == own and OPENING.match(patch.name)]
    return [*opening, *(["*.handshake.*"] if watched else [])]


@pytest.fixture
def patched():
    yield
    patchwork.revert()


def fast(monkeypatch, tmp_path, name, conv="exact", scan="exact", native=True, watched=True, rows=((7, 5, 9),)):
    """An isolated model whose mixers find these kernels, what its documents come to alone, with the same kernels, and how its
    mixers keep documents apart."""
    case = Case(name, rows)
    doubles.install(monkeypatch, tmp_path, conv=conv, scan=scan)
    for kernel in doubles.KERNELS:
        doubles.kernel(kernel)  # imported, so that patches are swapped in
    if chosen := patches(name, watched):
        patchwork.apply(*chosen)
    monkeypatch.setattr(kernels, "_ON_DEVICE", ("cpu",))
    model = build(name)
    restore(model)
    doubles.use(monkeypatch, model)
    try:
        expected = of_each(model, case)
    except (RuntimeError, AssertionError, TypeError) as error:
        assert name == "lfm3" or conv is None or "renamed" in (conv, scan)
        pytest.skip(f"stock cannot run {name} with these kernels: {error}")
    ways = {part.kind: part for part in isolate(model, native=native) if part.role == "mixer"}
    doubles.forget_calls()
    return model, case, expected, ways[OPEN[name].name]


def build(name):
    # The strides of the small default are such that kernels take no documents.
    return models.build(name).train() if name == "zamba2" else tiny.build(name)


@pytest.mark.parametrize("name", NAMES)
def test_both_kernels_are_told_the_documents(name, monkeypatch, tmp_path, patched):
    model, case, expected, part = fast(monkeypatch, tmp_path, name)
    assert (part.way, part.why) == ("native kernels", "")
    assert_equal(run(model, case, **case.form()), expected)
    assert doubles.calls()
    # Those of inkling's attention run inside of it, on documents.
    assert all(boundaries is not None for _, boundaries in doubles.calls()) or name == "inkling"
    assert_leaks(run(model, case), expected, case)


@pytest.mark.parametrize(
    ("conv", "scan"), [("exact", None), (None, "exact"), (None, None), ("renamed", "exact"), ("exact", "renamed")]
)
@pytest.mark.parametrize("name", SCANNING)
def test_one_kernel_or_none_or_another_argument_means_side_by_side(name, conv, scan, monkeypatch, tmp_path, patched):
    model, case, expected, part = fast(monkeypatch, tmp_path, name, conv, scan)
    assert part.way == "document batching"
    assert "does not call" in part.why or "has no argument" in part.why
    assert_equal(run(model, case, **case.form()), expected)
    assert all(boundaries is None for _, boundaries in doubles.calls())


@pytest.mark.parametrize(
    ("conv", "scan", "reason"),
    [
        ("renamed", "exact", "causal-conv1d 1.6.1's causal_conv1d_fn has no argument seq_idx"),
        ("exact", "renamed", "fla-core 0.6.0's chunk_gated_delta_rule has no argument cu_seqlens"),
        ("exact", None, "it does not call fla's chunk_gated_delta_rule"),
    ],
)
def test_a_reason_names_the_distribution_of_the_kernel_and_its_version(conv, scan, reason, monkeypatch, tmp_path, patched):
    part = fast(monkeypatch, tmp_path, "qwen3_next", conv, scan)[-1]
    assert part.why == reason


def test_a_reason_names_the_distribution_that_is_there(monkeypatch):
    kernel = kernels.KERNELS["chunk_kda"]
    there = {"flash-linear-attention": "0.2.1"}

    def version(name):
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "fla", types.SimpleNamespace(__version__="0.2.1.of_this_test"))
    assert kernels.titled(kernel) == "flash-linear-attention 0.2.1.of_this_test's chunk_kda"
    there.clear()
    monkeypatch.setitem(sys.modules, "fla", types.SimpleNamespace(__version__="0.2.2.of_this_test"))
    assert kernels.titled(kernel) == "fla 0.2.2.of_this_test's chunk_kda"
    monkeypatch.setitem(sys.modules, "fla", types.SimpleNamespace())
    assert kernels.titled(kernel) == "fla's chunk_kda"


@pytest.mark.parametrize("half", kernels.TOLD)
@pytest.mark.parametrize("name", [name for name in SCANNING if name.startswith(("qwen", "kimi", "lara", "olmo", "bailing"))])
def test_either_half_alone_leaks_and_is_refused(name, half, monkeypatch, tmp_path, patched):
    model, case, expected, _ = fast(monkeypatch, tmp_path, name)
    full = kernels.arguments_for(case.boundaries)
    monkeypatch.setattr(mixer_forward, "arguments_for", lambda _: {half: full[half]})
    other = "cu_seqlens" if half == "seq_idx" else "seq_idx"
    with pytest.raises(IsolationError, match=rf"layers\.\d+\..*: \w+ was called in a packed call without {other}") as caught:
        run(model, case, **case.form())
    assert re.search(r"the mixer and (causal-conv1d 1\.6\.1|fla-core 0\.6\.0)'s \w+ dropped it", str(caught.value))
    monkeypatch.setattr(handshake, "AMBIENT", type("Nobody", (), {"scope": None}))
    monkeypatch.setattr(mixer_forward, "confirm", lambda *_: None)
    assert_leaks(run(model, case, **case.form()), expected, case)


@pytest.mark.parametrize("faulty", [{"conv": "ignores"}, {"scan": "ignores"}], ids=str)
@pytest.mark.parametrize("name", SCANNING)
def test_a_kernel_that_takes_boundaries_and_ignores_them_is_found_by_the_probe(name, faulty, monkeypatch, tmp_path, patched):
    model, _, _, part = fast(monkeypatch, tmp_path, name, **faulty)
    assert part.way == "native kernels"
    report = probe(model, (7, 5, 9))
    assert not report.passed
    assert report.forward.worst > report.noise


@pytest.mark.parametrize("name", NAMES)
def test_unwatched_kernels_are_not_relied_on(name, monkeypatch, tmp_path, patched):
    model, case, expected, part = fast(monkeypatch, tmp_path, name, watched=False)
    assert part.way == "document batching"
    assert "nobody watches" in part.why
    assert_equal(run(model, case, **case.form()), expected)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_switched_off(name, monkeypatch, tmp_path, patched):
    model, case, expected, part = fast(monkeypatch, tmp_path, name, native=False)
    assert (part.way, part.why) == ("document batching", "isolate(native=False)")
    assert_equal(run(model, case, **case.form()), expected)
    assert all(boundaries is None for _, boundaries in doubles.calls())


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("name", NAMES)
def test_a_recompute_is_told_too(name, reentrant, monkeypatch, tmp_path, patched):
    model, case, expected, _ = fast(monkeypatch, tmp_path, name)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    once = len(doubles.calls())
    assert_equal(run(model, case, **case.form()), expected)
    assert len(doubles.calls()) > once
    assert all(boundaries is not None for _, boundaries in doubles.calls()) or name == "inkling"


@pytest.mark.parametrize("name", SCANNING)
def test_what_a_kernel_cannot_take_runs_side_by_side(name, monkeypatch, tmp_path, patched):
    model, case, expected, _ = fast(monkeypatch, tmp_path, name, rows=((7, 5, 9), (13, 8)))
    assert_equal(run(model, case, **case.form()), expected)
    one_row = any(kernels.KERNELS[kernel].argument == kernels.CU_SEQLENS for kernel, _ in OPEN[name].kernels)
    assert all((boundaries is None) == one_row for _, boundaries in doubles.calls())


def test_more_documents_than_the_kernel_takes(monkeypatch, tmp_path, patched):
    model, case, expected, _ = fast(monkeypatch, tmp_path, "qwen3_next")
    mixer = next(module for module in model.modules() if type(module).__name__ == "Qwen3NextGatedDeltaNet")
    entry = OPEN["qwen3_next"]
    assert not kernels.gap(mixer, entry, case.boundaries)
    many = copy.copy(kernels.KERNELS["chunk_gated_delta_rule"])
    object.__setattr__(many, "documents", 2 * mixer.num_v_heads)
    monkeypatch.setitem(kernels.KERNELS, many.name, many)
    assert kernels.gap(mixer, entry, case.boundaries) == f"{many.name} takes 2 documents with 4 heads, the row has 3"
    assert_equal(run(model, case, **case.form()), expected)
    assert all(boundaries is None for _, boundaries in doubles.calls())


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_that_was_replaced_since_is_noticed(name, monkeypatch, tmp_path, patched):
    model, case, expected, _ = fast(monkeypatch, tmp_path, name)
    doubles.install(monkeypatch, tmp_path, conv="exact", scan="exact")  # fresh ones, which nobody watches
    doubles.use(monkeypatch, model)
    assert_equal(run(model, case, **case.form()), expected)
    assert all(boundaries is None for _, boundaries in doubles.calls())


def test_kernels_report_nothing_outside_of_packed_calls(monkeypatch, tmp_path, patched):
    model, case, *_ = fast(monkeypatch, tmp_path, "qwen3_next")
    with torch.no_grad():
        model(input_ids=case.tokens, use_cache=False)
    assert doubles.calls()
