"""The command `patchwork probe --all`: measures every causal model type of the installed transformers, in other processes.

A process measures some types and is then replaced, so that what models leave behind does not add up. One that dies or takes
too long is replaced too, and only the type that it was at is told so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..packing.errors import ProbeError
from . import progress

STATES = {
    "isolated": "packed rows are exact, and a leak would have been seen",
    "refused": "packed rows are refused, with a reason",
    "leaking": "documents reach each other",
    "unproven": "nothing leaked, but neither did it without boundaries, so that shows nothing",
    "failed": "an ordinary call works, a packed one raises or ends the process",
    "unbuilt": "no tiny model of the default config can be built, or called in the ordinary way",
}
FALLS_SHORT = ("leaking", "unproven", "failed")
COLOURS = {"isolated": "green", "refused": "yellow", "unbuilt": "dim"} | dict.fromkeys(FALLS_SHORT, "bold red")
TIMEOUT = 120.0  # seconds for one type; the slowest of transformers 5.24 takes 4
MEMORY = 4 << 30  # bytes of data a process; the largest of transformers 5.24 takes 0.9 GiB
PER_PROCESS = 60  # types; a process starts in about 4 s, and grows by some MiB with each type

_WORKER = "import sys; from patchwork.commands.census_worker import main; main(sys.argv[1] == 'stock', int(sys.argv[2]))"
WORKER = (sys.executable, "-c", _WORKER)


@dataclass(frozen=True)
class Finding:
    """What became of one model type. `state`: one of STATES. `worst`: the largest leak, and `control`: the same without
    boundaries, both None where nothing was measured or the outputs were not finite."""

    type: str
    kind: str
    state: str
    reason: str = ""
    worst: float | None = None
    control: float | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"class" if name == "kind" else name: value for name, value in asdict(self).items()}

    @property
    def shape(self) -> str:
        """The reason without the names of this model and lists of known ones: the same for models that are refused alike."""
        names = "|".join(re.escape(name) for name in (self.kind, _family(self.kind), self.type) if name)
        return re.sub(rf"\b({names})\w*", "…", re.sub(r"[;:,]? ?\(?known: .*", "", self.reason))


@dataclass(frozen=True)
class Census:
    """What became of every model type that was asked about, in the order of transformers' own list. `how`: "stock" or
    "patchwork.apply()"."""

    transformers: str
    how: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """How many types are in each state."""
        found = Counter(finding.state for finding in self.findings)
        return {state: found[state] for state in STATES}

    @property
    def ok(self) -> bool:
        """Whether every packed row is exact or refused, wherever a model runs at all."""
        return not any(self.counts[state] for state in FALLS_SHORT)

    def of(self, state: str) -> list[Finding]:
        """The findings of one state."""
        return [finding for finding in self.findings if finding.state == state]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        told = {"transformers": self.transformers, "how": self.how, "seconds": round(self.seconds, 1), "counts": self.counts}
        return told | {"types": [finding.as_dict() for finding in self.findings]}


def run(only: str | None = None, *, stock: bool = False, jobs: int = 1, timeout: float = TIMEOUT) -> Census:
    """The census of the installed transformers, with all patches that fit in force unless `stock`.

    `only`: some model types, with commas between. `jobs`: how many processes measure at once. `timeout`: seconds for one
    type. Progress goes to stderr. Raises ProbeError for a model type that there is not, for numbers that make no sense, and
    where packages are missing or no process can start.
    """
    if missing := [name for name in ("torch", "transformers") if find_spec(name) is None]:
        raise ProbeError(f"a probe runs models and needs {', '.join(missing)}. Install: pip install {' '.join(missing)}")
    if jobs < 1 or timeout <= 0:
        raise ProbeError(f"--jobs {jobs} --timeout {timeout:g}: give one process and some time at least")
    started = time.perf_counter()
    how = "stock" if stock else "patchwork.apply()"

    def start() -> _Worker:
        return _Worker("stock" if stock else "patched", timeout)

    with progress.shown() as advance:
        first = start()
        try:
            kinds = _chosen(first.types, only)
            what = f"measuring model types of transformers {first.transformers}"
            found = _measure(kinds, jobs, first, start, lambda done: advance(what, done, len(kinds)))
        finally:
            first.end()
    findings = tuple(replace(found[kind], kind=name) for kind, name in kinds.items())
    return Census(first.transformers, how, findings, time.perf_counter() - started)


def _chosen(types: Mapping[str, str], only: str | None) -> dict[str, str]:
    if only is None:
        return dict(types)
    wanted = [part.strip() for part in only.split(",")]
    for name in wanted:
        if name not in types:
            near = ", ".join(get_close_matches(name, types, n=3, cutoff=0.6)) or "none"
            raise ProbeError(f"--only {name}: not a type of causal language models in this transformers; near: {near}")
    return {kind: name for kind, name in types.items() if kind in wanted}


def _family(kind: str) -> str:
    """The name that the classes of a family begin with: GPT2 of GPT2LMHeadModel."""
    return re.split(r"For[A-Z]|LMHead|DoubleHeads", kind)[0]


# ---- other processes ------------------------------------------------------------------------------------------------


def _measure(
    kinds: Iterable[str], jobs: int, first: _Worker, start: Callable[[], _Worker], advance: Callable[[int], None]
) -> dict[str, Finding]:
    """What becomes of some types, measured by `first` and further processes beside it and after it."""
    waiting, found, alive = deque(kinds), dict[str, Finding](), {first}
    advance(0)

    def work(worker: _Worker | None) -> None:
        while waiting:
            try:
                kind = waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            if worker is None or not worker.usable:
                if worker is not None:
                    worker.end()
                worker = start()
                alive.add(worker)
            found[kind] = worker.measure(kind)
            advance(len(found))

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in [pool.submit(work, worker) for worker in (first, *[None] * (jobs - 1))]:
                done.result()
        finally:  # also where the user has had enough
            waiting.clear()
            for worker in tuple(alive):
                worker.end()
    return found


class _Worker:
    """Another process that measures: census_worker.py."""

    def __init__(self, how: str, timeout: float) -> None:
        self._timeout, self._measured, self._late = timeout, 0, False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        command = [*WORKER, how, str(MEMORY)]
        environment = {"HF_HUB_OFFLINE": "1", **os.environ}  # a census asks nothing of the network
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, encoding="utf-8"
        )
        hello = self._line(max(timeout, TIMEOUT))
        if hello is None:
            raise ProbeError(f"no process can start that measures: {self._end()}")
        self.transformers: str = hello["transformers"]
        self.types: dict[str, str] = hello["types"]

    @property
    def usable(self) -> bool:
        """Whether it runs and has not measured enough."""
        return self._process.poll() is None and self._measured < PER_PROCESS

    def measure(self, kind: str) -> Finding:
        """What becomes of a type, whatever becomes of the process."""
        self._measured += 1
        started, runs = time.perf_counter(), False
        self._errors.seek(0)  # of both processes
        self._errors.truncate()
        with suppress(BrokenPipeError):  # told below
            print(kind, file=self._process.stdin, flush=True)
        answer = self._line(self._timeout)
        if answer is not None and "runs" in answer:
            runs = True
            answer = self._line(self._timeout - (time.perf_counter() - started))
        if answer is not None:
            return Finding(kind, "", **answer)
        taken = time.perf_counter() - started
        return Finding(kind, "", "failed" if runs else "unbuilt", self._end(), seconds=round(taken, 2))

    def end(self) -> None:
        """Ends the process, at once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """The next answer; None where the process ended, which it does when it takes longer."""
        self._late = False
        timer = threading.Timer(max(seconds, 0), self._stop)
        timer.start()
        try:
            line = (self._process.stdout or ()).readline()  # type: ignore[union-attr]
        finally:
            timer.cancel()
        return json.loads(line) if line.endswith("\n") else None

    def _stop(self) -> None:
        self._late = True
        self._process.kill()

    def _end(self) -> str:
        """Why the process is no more."""
        code = self._process.wait()
        if self._late:
            return f"not done after {self._timeout:g} s"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines() or [""]
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return f"the process ended with {how}: {lines[-1][:300]}".rstrip(": ")


# ---- drawing --------------------------------------------------------------------------------------------------------


def show(census: Census, console: Console) -> None:
    """Print how many types are in each state, which those are, and the reasons."""
    console.print(
        f"[bold]transformers {escape(census.transformers)}, {escape(census.how)}[/]: {len(census.findings)} types of causal "
        f"language models, {census.seconds:.0f} s\n"
    )
    for state, number in census.counts.items():
        console.print(f"  [{COLOURS[state]}]{state:<9}[/] {number:>4}  [dim]{STATES[state]}[/]")
    for state in (*FALLS_SHORT, "unbuilt"):
        _heading(census, state, console)
        for finding in census.of(state):
            console.print(f"  [bold]{escape(finding.type)}[/]  {escape(finding.reason)}")
    _heading(census, "refused", console)
    for reason, alike in by_reason(census.of("refused")).items():
        console.print(f"  {escape(reason)}\n    [bold]{escape(', '.join(finding.type for finding in alike))}[/]")
    _heading(census, "isolated", console)
    if alike := census.of("isolated"):
        console.print(f"  {escape(', '.join(finding.type for finding in alike))}")


def by_reason(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Findings with the same reason together; where it differs only in names of the model, those are left out of it."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.shape, []).append(finding)
    return {group[0].reason if len({each.reason for each in group}) == 1 else shape: group for shape, group in groups.items()}


def _heading(census: Census, state: str, console: Console) -> None:
    if census.counts[state]:
        console.print(f"\n[{COLOURS[state]}]{state}[/]")
