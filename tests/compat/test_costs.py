"""How much of the project's own code runs for a model, counted: a number of calls is the same on every machine."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
import tiny

import patchwork
from patchwork.packing import isolate, restore

PACKAGE = str(Path(patchwork.__file__).parent)


@pytest.mark.skipif(not tiny.has("qwen3_5"), reason="this release has no qwen3_5")
def test_a_model_is_isolated_in_few_calls() -> None:
    model = tiny.build("qwen3_5")  # of four layers
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        if event == "call" and name != "<genexpr>" and frame.f_code.co_filename.startswith(PACKAGE):  # those run on in steps
            calls[name] += 1

    for _ in range(2):  # the first time in a process, and a model of the same classes
        calls.clear()
        sys.setprofile(count)
        try:
            isolate(model)
        finally:
            sys.setprofile(None)
        assert 100 < calls.total() < 2000, calls.most_common(5)
        restore(model)
