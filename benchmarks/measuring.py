"""Measures the time and the memory of a step, and compares the gain with what was promised.

A step is a forward and a backward pass. On one thread seconds are those of the processor, so that other processes hardly
count; on more they pass on the clock. Memory is the most that torch's allocator on the CPU holds at once during a step, above
what it held before: torch's profiler sees every block, those inside of kernels too, which neither tracemalloc nor a count of
what autograd saves would.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler says on stderr that it begins and ends

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """Of all steps of a way: seconds in total, and the bytes of the largest."""

    seconds: float
    peak: int


def measure(ways: Mapping[str, list[Step]], repeats: int, once: Collection[str] = ()) -> dict[str, Cost]:
    """What each way costs: for each step the median of several turns, in which the ways take turns at each step.

    The turn before them warms up, and shows the memory. Ways of ``once``, slow ones, are timed in the first turn only.
    """
    peaks = dict.fromkeys(ways, 0)
    taken: dict[str, dict[int, list[float]]] = {name: {} for name in ways}
    for turn in range(repeats + 1):
        for name, at, step in _in_turns(ways):
            if turn == 0:
                peaks[name] = max(peaks[name], peak(step))
            elif turn == 1 or name not in once:
                taken[name].setdefault(at, []).append(seconds(step))
    return {name: Cost(sum(map(statistics.median, taken[name].values())), peaks[name]) for name in ways}


def _in_turns(ways: Mapping[str, list[Step]]) -> Iterator[tuple[str, int, Step]]:
    for at, steps in enumerate(zip_longest(*ways.values())):
        yield from ((name, at, step) for name, step in zip(ways, steps, strict=True) if step is not None)


def clock() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds(step: Step) -> float:
    begin = clock()
    step()
    return clock() - begin


def peak(step: Step) -> int:
    """In bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    held = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def verdict(value: float, goal: float) -> tuple[str, bool]:
    """A ratio beside its goal, and whether it is met. A goal of 0 is none."""
    if not goal:
        return f"{value:.2f}", True
    return f"{value:.2f} (at least {goal:g}: {'met' if value >= goal else 'MISSED'})", value >= goal


def closing(met: list[bool]) -> int:
    """Says whether all goals are met, and returns the exit code for that."""
    missed = met.count(False)
    print(f"\n{missed} goals missed" if missed else "\nall goals met")
    return 1 if missed else 0
