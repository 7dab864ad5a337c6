"""Times the check that every function of a modeling file is the one of its source, against the limit of 25 ms.

Twenty modeling files of the installed transformers are imported; for each the check is made as `patchwork.apply()` makes it for a
target (warm, garbage collection paused), but for every function: the source is read and parsed, its code taken from the .pyc or
compiled, and each living function found. Prints milliseconds a module, the least of several runs: with the .pyc that is there,
which is held against the limit, and without one. A function taken for a foreign one ends it with that error.

    python benchmarks/provenance.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import itertools
import statistics
import sys
import time
import types
from importlib.util import find_spec

from patchwork.engine.environment.installed import read_source
from patchwork.engine.errors import TargetMissing
from patchwork.engine.live import lookup
from patchwork.engine.live.pyc import code_on_disk
from patchwork.engine.locate import definitions, functions, starts_at
from patchwork.engine.text import Source, decode

GOAL_MS = 25.0
STEPS = ("read", "parse", "code", "find")
MODELS = (
    *("bamba", "bart", "bert", "clip", "deepseek_v3", "falcon_h1", "gemma3", "gpt_oss", "granitemoehybrid", "jamba", "lfm2"),
    *("llama", "mamba2", "mixtral", "modernbert", "qwen3_5", "qwen3_next", "siglip", "t5", "vit", "whisper", "zamba2"),
)


def check(module: types.ModuleType, *, pyc: bool) -> tuple[list[float], int, int]:
    """Milliseconds of each step, and how many functions were found and were absent (defined under a condition)."""
    assert module.__spec__ is not None
    clock = [time.perf_counter()]
    source = read_source(module.__spec__)
    if not pyc:
        source = dataclasses.replace(source, cached="")
    clock.append(time.perf_counter())
    text = Source(decode(source.data)[0])
    clock.append(time.perf_counter())
    code = code_on_disk(source, text.tree)
    clock.append(time.perf_counter())
    found = absent = 0
    for name in dict.fromkeys(name for name, _ in functions(text.tree)):
        meant = definitions(text.tree, name)
        try:
            lookup.find_live(module, name, [lookup.code_of(code, name, starts_at(item)) for item in meant], meant[0])
            found += 1
        except TargetMissing:
            absent += 1
    clock.append(time.perf_counter())
    return [1000 * (end - start) for start, end in itertools.pairwise(clock)], found, absent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    import transformers

    names = [name for name in MODELS if find_spec(f"transformers.models.{name}")]
    modules = [importlib.import_module(f"transformers.models.{name}.modeling_{name}") for name in names]
    worst = 0.0
    gc.disable()
    for pyc in (True, False):
        kind = "as installed (code from the .pyc)" if pyc else "without .pyc (code compiled)"
        print(f"transformers {transformers.__version__}, {kind}; ms a module")
        print(f"{'':18}{'lines':>7}{'functions':>11}" + "".join(f"{step:>7}" for step in (*STEPS, "sum")))
        sums, total, missing = [], 0, 0
        for name, module in zip(names, modules, strict=True):
            runs = [check(module, pyc=pyc) for _ in range(repeats)]
            steps, found, absent = min(runs, key=lambda run: sum(run[0]))
            sums.append(sum(steps))
            total, missing = total + found, missing + absent
            with open(str(module.__file__), "rb") as stream:
                lines = sum(1 for _ in stream)
            print(f"{name:18}{lines:7}{found:11}" + "".join(f"{value:7.1f}" for value in (*steps, sums[-1])))
        print(
            f"{len(names)} modules, {total} functions found, {missing} absent: median {statistics.median(sums):.1f}, "
            f"worst {max(sums):.1f} (limit {GOAL_MS:.0f})\n"
        )
        if pyc:
            worst = max(sums)
    return int(worst > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
