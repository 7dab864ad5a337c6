"""Lets the tests that run in each matrix cell import their tiny models: `import tiny`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patchwork

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def patched_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All patches that fit, for all tests of a file: applying takes longer than some of them."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATCHWORK_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
        patchwork.apply()
        yield
        patchwork.revert()


@pytest.fixture
def patched(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All patches that fit, with a cache that the tests of one run share."""
    monkeypatch.setenv("PATCHWORK_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    patchwork.apply()
    yield
    patchwork.revert()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Any]:
    """A process where nothing is patched: `steps.Elsewhere`."""
    from steps import Elsewhere

    place = Elsewhere()
    yield place
    place.pool.shutdown()


@pytest.fixture(autouse=True)
def no_batch_of_another_test() -> Iterator[None]:
    """A batch that a test prepares outside of a trainer's step is remembered until the next one."""
    yield
    if (batches := sys.modules.get("patchwork.packing.runtime.lost_boundaries")) is not None:
        batches.forget()


@pytest.fixture(autouse=True)
def accelerate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A trainer in bfloat16, or a compiled one, makes those that come after it in its process so, too: accelerate keeps what
    the first one asked for, and transformers puts it into the environment."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        os.environ.pop(name)
    os.environ.update({name: value for name, value in before.items() if name.startswith("ACCELERATE_")})
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    kept = {} if state is None else state._shared_state
    compiles = getattr(getattr(kept.get("dynamo_plugin"), "backend", None), "value", "NO") != "NO"
    if kept.get("_mixed_precision") not in (None, "no") or compiles:
        state._reset_state(reset_partial_state=True)
