"""Short documents run in chunks of their own length where the release, or a patch, lets the mixer be told of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import NAMES, Case, assert_alone, isolated, logits, stock
from tiny import build

import patchwork

SHORT = Case(rows=((7, 5, 9, 16, 1),))


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path))
    patchwork.apply()
    yield
    patchwork.revert()


def chunk_lengths(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, run: Any) -> set[int]:
    """The chunk lengths that the torch rule is called with."""
    module = sys.modules[type(model.model).__module__]
    rule, seen = module.torch_chunk_gated_delta_rule, set()

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.add(kwargs.get("chunk_size", 64))
        return rule(*args, **kwargs)

    monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", watched)
    for mixer in model.modules():
        if hasattr(mixer, "chunk_gated_delta_rule"):  # copied to the instance before 5.15
            monkeypatch.setattr(mixer, "chunk_gated_delta_rule", watched)
    run()
    return seen


@pytest.mark.parametrize("name", [name for name in NAMES if name != "qwen3_5_vlm"])
def test_short_documents_run_in_short_chunks_and_are_exact(name: str, patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(name, SHORT.rows)
    model = build(name)
    patchwork.packing.isolate(model)
    assert chunk_lengths(model, monkeypatch, lambda: assert_alone(model, case, gradients=False, **case.form())) == {16, 64}


def test_an_ordinary_call_keeps_its_chunks(patched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(SHORT.name)
    row = SHORT.tokens
    assert torch.equal(logits(model, row), logits(stock(SHORT.name), row))
    assert chunk_lengths(model, monkeypatch, lambda: logits(model, row)) == {64}


def test_a_model_isolated_under_the_patch_is_exact_after_a_revert(patched: None) -> None:
    model = build(SHORT.name)
    assert_alone(model, SHORT, **SHORT.form())
    patchwork.revert()
    assert_alone(model, SHORT, **SHORT.form())
    assert_alone(isolated(SHORT.name), SHORT, **SHORT.form())
