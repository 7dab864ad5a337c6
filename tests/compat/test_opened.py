"""Mixers that source patches open: their kernels are told of documents, and without documents they are upstream's."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from packaging.specifiers import SpecifierSet
from tiny import build, documents, gradients, logits, loss, recurrent_names

import patchwork
from patchwork.patches.transformers import gated_delta, kda, mamba2, short_conv

# Family: its mixer, its config.
SMALL = {"hidden_size": 64, "num_hidden_layers": 2}
MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, **SMALL}
MIXERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba2": ("Mamba2Mixer", "Mamba2Config", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, **SMALL}),
    "falcon_h1": ("FalconH1Mixer", "FalconH1Config", MAMBA),
    "zamba2": (
        "Zamba2MambaMixer",
        "Zamba2Config",
        {"n_mamba_heads": 8, "mamba_d_state": 16, "mamba_ngroups": 1, "use_mem_eff_path": True, "hidden_size": 64},
    ),
    "nemotron_h": (
        "NemotronHMamba2Mixer",
        "NemotronHConfig",
        {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "hidden_size": 64},
    ),
    "lfm2": ("Lfm2ShortConv", "Lfm2Config", SMALL),
    "lfm2_moe": ("Lfm2MoeShortConv", "Lfm2MoeConfig", {**SMALL, "num_dense_layers": 1}),
    "kimi_linear": ("KimiLinearDeltaAttention", "KimiLinearConfig", {"hidden_size": 64}),
    "bailing_hybrid": ("BailingHybridDeltaAttention", "BailingHybridConfig", {"hidden_size": 64}),
    "glm5_next": ("Glm5NextTextLinearAttention", "Glm5NextTextConfig", {"hidden_size": 64}),
}
SEQ_IDX = torch.tensor([[0, 0, 0, 1, 1]], dtype=torch.int32)
CU_SEQLENS = torch.tensor([0, 3, 5], dtype=torch.int32)


def opened(file: Any) -> list[str]:
    """The families that the patches of a file open in this release."""
    fitting = [patch for patch in file.PATCHES if transformers.__version__ in SpecifierSet(patch.versions["transformers"])]
    return sorted({patch.target.split(".")[2] for patch in fitting if "chunk" not in patch.name})


DELTA, DISPATCHED, KIMI = opened(gated_delta), [*opened(mamba2), *opened(short_conv)], opened(kda)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path))
    yield
    patchwork.revert()


class Kernel:
    """Stands for a kernel, and keeps what it was called with."""

    def __init__(self, result: Any) -> None:
        self.result, self.keywords = result, {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.keywords = kwargs
        return self.result(*args, **kwargs)


@pytest.mark.parametrize("name", DELTA)
def test_without_documents_a_gated_delta_net_is_upstreams(name: str) -> None:
    model = build(name)
    row = torch.cat(documents((70, 9)), dim=1)

    def run() -> torch.Tensor:
        return logits(model, input_ids=row)

    before, slopes = run(), gradients(model, lambda: loss([row, run()]))
    assert all(outcome.state == "applied" for outcome in patchwork.apply(f"transformers.gated_delta.{name}"))
    assert torch.equal(run(), before)
    again = gradients(model, lambda: loss([row, run()]))
    assert all(torch.equal(again[parameter], slope) for parameter, slope in slopes.items())
    assert max(slope.abs().max() for slope in slopes.values()) > 0


@pytest.mark.parametrize("name", DELTA)
def test_documents_reach_the_kernels_of_a_gated_delta_net(name: str) -> None:
    patchwork.apply(f"transformers.gated_delta.{name}")
    mixer = next(module for module in build(name).modules() if hasattr(module, "chunk_gated_delta_rule"))
    mixer.causal_conv1d_fn = convolution = Kernel(lambda x, **_: x)
    mixer.chunk_gated_delta_rule = rule = Kernel(lambda q, k, v, **_: (v, None))
    row = torch.randn(1, 5, 64)
    mixer(row, seq_idx=SEQ_IDX, cu_seq_lens_q=CU_SEQLENS)
    assert convolution.keywords["seq_idx"] is SEQ_IDX
    assert rule.keywords["cu_seqlens"] is CU_SEQLENS
    mixer(row)
    assert convolution.keywords["seq_idx"] is None
    assert "cu_seqlens" not in rule.keywords


def mixer_of(name: str) -> tuple[Any, Any, dict[str, Kernel]]:
    """A mixer of the family, its module, and what stands for the kernels there."""
    kind, config, settings = MIXERS[name]
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    mixer = getattr(module, kind)(getattr(transformers, config)(**settings), layer_idx=0)
    if name == "falcon_h1":  # its model sets it
        mixer.mup_vector = torch.ones(())
    kernels = {
        "causal_conv1d_fn": Kernel(lambda x, *_, **__: x),
        "mamba_chunk_scan_combined": Kernel(lambda x, *_, **__: (x, None)),
        "mamba_split_conv1d_scan_combined": Kernel(
            lambda x, *_, return_final_states, **__: (x, None) if return_final_states else x
        ),
    }
    return mixer, module, dict(list(kernels.items())[:1]) if name.startswith("lfm2") else kernels


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some mixers enter a device or a stream around a kernel."""
    for name in ("device", "stream", "default_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: nullcontext())


@pytest.mark.parametrize("name", DISPATCHED)
@pytest.mark.usefixtures("without_cuda")
def test_documents_reach_the_kernels_of_a_mixer_that_dispatches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patchwork.apply(f"transformers.*.{name}.*")
    mixer, module, kernels = mixer_of(name)
    for kernel, stand_in in kernels.items():  # not before: some releases set their globals as a mixer is built
        monkeypatch.setattr(module, kernel, stand_in, raising=False)
    row = torch.randn(1, 5, 64)
    for seq_idx in (SEQ_IDX, None):
        for training in (True, False):  # which is another kernel
            mixer.train(training).cuda_kernels_forward(row, seq_idx=seq_idx)
        assert all(stand_in.keywords.pop("seq_idx") is seq_idx for stand_in in kernels.values())


@pytest.mark.parametrize("name", DISPATCHED)
@pytest.mark.usefixtures("without_cuda")
def test_documents_pass_the_dispatch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patchwork.apply(f"transformers.*.{name}.*")
    mixer, module, _ = mixer_of(name)
    monkeypatch.setattr(module, "is_fast_path_available", True)
    mixer.cuda_kernels_forward = kernels = Kernel(lambda *_, **__: None)
    on_cuda = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.float32)
    del mixer.in_proj
    mixer.in_proj = SimpleNamespace(weight=on_cuda)  # where some ask; the others ask of the row
    mixer.forward(on_cuda, seq_idx=SEQ_IDX)
    assert kernels.keywords == {"seq_idx": SEQ_IDX}
    mixer.forward(on_cuda)
    assert kernels.keywords == {"seq_idx": None}


@pytest.mark.parametrize("name", DISPATCHED)
def test_without_documents_a_mixer_that_dispatches_is_upstreams(name: str) -> None:
    mixer, _, _ = mixer_of(name)
    row = torch.randn(1, 5, 64)

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return mixer(row), gradients(mixer, lambda: (mixer(row) * torch.arange(64)).sum())

    before, slopes = run()
    assert all(outcome.state == "applied" for outcome in patchwork.apply(f"transformers.*.{name}.*"))
    after, again = run()
    assert torch.equal(before, after)
    assert all(torch.equal(again[parameter], slope) for parameter, slope in slopes.items())


@pytest.mark.parametrize("name", KIMI)
def test_documents_reach_the_scan_of_kimi_delta_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer, module, _ = mixer_of(name)
    convolution, scan = Kernel(lambda x, **_: x), Kernel(lambda q, k, v, **_: (v, None))
    monkeypatch.setattr(module, "causal_conv1d_fn", convolution)
    monkeypatch.setattr(module, "chunk_kimi_delta_attention", scan)
    told = {"seq_idx": SEQ_IDX, "cu_seq_lens_q": CU_SEQLENS}
    mixer(torch.randn(1, 5, 64), **told)
    assert "cu_seqlens" not in scan.keywords, "upstream's own"
    patchwork.apply(f"transformers.kda.{name}")
    mixer(torch.randn(1, 5, 64), **told)
    assert convolution.keywords["seq_idx"] is SEQ_IDX
    assert scan.keywords["cu_seqlens"] is CU_SEQLENS
    mixer(torch.randn(1, 5, 64))
    assert scan.keywords["cu_seqlens"] is None


def test_a_release_with_nothing_to_open_hands_documents_on_by_itself() -> None:
    """So that the lists above are not empty by mistake."""
    assert bool(KIMI) == (transformers.__version__ in SpecifierSet(">=5.16.1"))
    assert bool(DELTA) == (transformers.__version__ in SpecifierSet("<5.9")) == ("qwen3_next" in DELTA)
    assert bool(DISPATCHED) == (transformers.__version__ in SpecifierSet("<5.15"))
    assert set(DELTA) <= set(recurrent_names())
