"""Tries a module's patches together and, if that fails, one by one; in worker processes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context

from ..engine.applicability import outcome_of
from ..engine.environment.installed import ModuleSource
from ..engine.errors import PatchError
from ..engine.module_plan import dry_run
from ..engine.patch import Patch
from ..engine.preview import failed, tried
from ..engine.report import Outcome
from ..engine.rewriting import Rewrite

_FEW = 6  # trials that end before a second process would have started

# Called with the number of trials done and the number in all.
Progress = Callable[[int, int], None]
Result = tuple[Outcome, "Rewrite[bytes] | None"]


@dataclass(frozen=True)
class Trial:
    """A module and the patches to try on it; `keep`: the rewrites are wanted, too."""

    source: ModuleSource
    patches: tuple[Patch, ...]
    keep: bool = False


def try_all(trials: Sequence[Trial], workers: int, progress: Progress) -> list[list[Result]]:
    """The results of each trial, in the order of the trials and of their patches."""
    progress(0, len(trials))
    found: list[list[Result]] = []
    if workers > 1 and len(trials) > _FEW:
        # Not forked: a progress bar or torch may have started threads here, whose locks a fork would inherit held.
        # Where no process can be started, or one is killed, the rest is done here.
        with suppress(BrokenProcessPool), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            for results in pool.map(try_out, trials):
                found.append(results)
                progress(len(found), len(trials))
    for trial in trials[len(found) :]:
        found.append(try_out(trial))
        progress(len(found), len(trials))
    return found


def try_out(trial: Trial) -> list[Result]:
    """An outcome a patch: `applied`, `native` or `failed`; a patch that fits alone fails where it conflicts with another."""
    collecting = gc.isenabled()
    gc.disable()  # the collector would walk all syntax trees again and again
    try:
        found = None if trial.keep else _at_once(trial)
        return found or [_result(trial, *pair) for pair in zip(trial.patches, tried(trial.source, trial.patches), strict=True)]
    finally:
        if collecting:
            gc.enable()


def _at_once(trial: Trial) -> list[Result] | None:
    """All patches in one go, which is the usual case; None where one of them fails."""
    try:
        done = dry_run(trial.source, trial.patches)
    except PatchError:
        return None
    return [(outcome_of(patch, done, "", pending=False), None) for patch in trial.patches]


def _result(trial: Trial, patch: Patch, done: Rewrite[bytes] | PatchError) -> Result:
    if isinstance(done, PatchError):
        return failed(patch, done), None
    return outcome_of(patch, done, "", pending=False), done if trial.keep else None
