"""All or nothing: from patches to swaps, in this process.

Everything is planned first: sources read, patches located, code compiled, living functions found. Only then is anything changed,
and a failure in between puts everything back.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from .applicability import applicability, outcome_of
from .environment.installed import loaded, settle, version_of
from .errors import ForeignPatch, InvalidPatch, PatchError, Unswappable
from .live.import_hooks import when_imported
from .live.inner_functions import exchange
from .live.process_state import as_ours, of_process
from .live.record import State, originals
from .live.swap import Swap
from .module_plan import Prepared, prepare, prepare_imported
from .patch import Patch
from .report import Outcome, Report


@dataclass
class _Record:
    """The patches in force on one module, and the functions that run their code."""

    patches: tuple[Patch, ...]
    swaps: list[Swap] = field(default_factory=list)
    pending: bool = False


# An import that ends takes this lock while it holds its module's: whoever holds this one must not wait for an import.
_lock = of_process("lock", threading.RLock())
_records = of_process("records", dict[str, _Record]())
_outcomes = of_process("outcomes", dict[str, Outcome]())
_notes = of_process("notes", dict[str, str]())


def apply(
    patches: Sequence[Patch],
    *,
    strict: bool = True,
    switched_off: Mapping[str, str] | None = None,
    tested: Mapping[str, str] | None = None,
) -> Report:
    """Apply patches to what is installed, now or (previewed now) when their modules are imported.

    Args:
        patches: what to apply; those applied before stay.
        strict: raise the first error and change nothing; else leave out the set of each patch that fails, and say so.
        switched_off: by patch name, why it is left out.
        tested: by distribution, the newest release that was checked; a newer one is marked untested.

    Raises:
        PatchError: with `strict`, whatever stops a patch.
    """
    patches = list(patches)
    for patch in patches:
        settle(patch.module)
    with _in_charge(), _collection_paused():
        _check_names(patches)
        in_force = {patch.name for patch in applied_patches()}
        installed = functools.cache(version_of)
        outcomes = {patch.name: applicability(patch, switched_off or {}, tested or {}, installed) for patch in patches}
        wanted = [patch for patch in patches if outcomes[patch.name].state == "applied"]
        prepared, failures = _prepare_all(wanted, strict=strict)
        _commit(prepared)
        _notes.update({patch.name: outcomes[patch.name].detail for patch in wanted if patch.name not in failures})
        for patch in patches:
            if patch.name in in_force and patch in wanted:
                outcomes[patch.name] = _outcomes[patch.name]
            elif patch.name in in_force:
                note = f"{outcomes[patch.name].detail}, but in force since an earlier apply(); revert() takes it out"
                outcomes[patch.name] = replace(_outcomes[patch.name], detail=note)
        for item in prepared:
            outcomes.update({patch.name: _outcome(patch, item) for patch in item.patches})
        outcomes.update(failures)
        _outcomes.update(outcomes)
        report = Report(tuple(outcomes[patch.name] for patch in patches))
    _watch(item.name for item in prepared if item.pending)
    return report


def revert(names: Iterable[str] | None = None) -> Report:
    """Take patches out (all, or those named) and give the functions their original code back; returns what is left."""
    with _in_charge(), _collection_paused():
        gone = {patch.name for patch in applied_patches()} | set(_outcomes) if names is None else set(names)
        left = {name: tuple(patch for patch in record.patches if patch.name not in gone) for name, record in _records.items()}
        changed = [name for name, record in _records.items() if left[name] != record.patches]
        prepared = [prepare(name, left[name]) for name in changed if left[name]]
        _commit(prepared)
        for name in changed:
            if not left[name]:
                _restore(_records.pop(name))
        for name in gone:
            _outcomes.pop(name, None)
            _notes.pop(name, None)
        report = status()
    _watch(item.name for item in prepared if item.pending)
    return report


def status() -> Report:
    """The outcomes of everything applied and not reverted, as things stand now."""
    with _in_charge():
        lost = {patch.name for name, record in _records.items() if _lost(name, record) for patch in record.patches}
        return Report(tuple(_as_lost(outcome) if name in lost else outcome for name, outcome in _outcomes.items()))


def _lost(name: str, record: _Record) -> bool:
    """Whether a module's functions no longer run the patched code, because it was loaded again or they were replaced."""
    module = loaded(name)
    if module is None:
        return False
    return record.pending or not all(item.holds(module) for item in record.swaps)


def _as_lost(outcome: Outcome) -> Outcome:
    if outcome.state not in ("applied", "pending"):
        return outcome
    return replace(
        outcome, state="failed", detail="lost: its module was loaded again or its function replaced; apply() patches it again"
    )


def applied_patches() -> tuple[Patch, ...]:
    """The patches in force or waiting for an import."""
    with _in_charge():
        return tuple(patch for record in _records.values() for patch in record.patches)


def _check_names(patches: Sequence[Patch]) -> None:
    seen = {patch.name: patch for patch in applied_patches()}
    for patch in patches:
        if seen.setdefault(patch.name, patch) != patch:
            raise InvalidPatch(
                "two different patches have this name",
                patch=patch.name,
                hint="rename one, or revert the one in force first",
            )


def _prepare_all(wanted: Sequence[Patch], *, strict: bool) -> tuple[list[Prepared], dict[str, Outcome]]:
    """Plan each module; without `strict`, leave out the set of whatever fails and plan again."""
    failures: dict[str, Outcome] = {}
    left = list(wanted)
    while True:
        prepared: list[Prepared] = []
        try:
            for name, patches in _by_module(left).items():
                if not _stands(name, patches):
                    prepared.append(prepare(name, patches))
            return prepared, failures
        except PatchError as error:
            if strict:
                raise
            # What was in force before is not to blame for what a new patch does to its module.
            new = [patch for patch in left if patch.module == error.target.partition(":")[0] and not _in_force(patch)]
            culprit = next((patch for patch in [*new, *left] if patch.name == error.patch), new[-1] if new else None)
            if culprit is None:
                raise
            for patch in [patch for patch in left if patch.set_name == culprit.set_name]:
                left.remove(patch)
                if patch is culprit or not (_in_force(patch) and _stands(patch.module, _records[patch.module].patches)):
                    detail = error.what if patch is culprit else f"left out, since {culprit.name} of the same set failed"
                    failures[patch.name] = Outcome(patch.name, patch.target, "failed", detail, error=error)


def _in_force(patch: Patch) -> bool:
    record = _records.get(patch.module)
    return record is not None and patch in record.patches


def _by_module(patches: Sequence[Patch]) -> dict[str, tuple[Patch, ...]]:
    """Patches by module, those in force on the same module included."""
    grouped: dict[str, list[Patch]] = {}
    for patch in patches:
        record = _records.get(patch.module)
        group = grouped.setdefault(patch.module, list(record.patches) if record else [])
        if patch not in group:
            group.append(patch)
    return {name: tuple(group) for name, group in grouped.items()}


def _stands(name: str, patches: tuple[Patch, ...]) -> bool:
    """Whether these patches are in force on the module already, and its functions are still the patched ones."""
    record = _records.get(name)
    if record is None or record.patches != patches:
        return False
    module = loaded(name)
    if record.pending:
        return module is None
    return module is not None and all(item.holds(module) for item in record.swaps)


def _commit(prepared: Sequence[Prepared]) -> None:
    """Make every swap, or none."""
    functions = {item.function for plan in prepared for item in plan.swaps}
    functions |= {item.function for plan in prepared if plan.name in _records for item in _records[plan.name].swaps}
    before = {function: (State.of(function), originals.get(function)) for function in functions}
    try:
        for plan in prepared:
            for item in plan.swaps:
                item.forget_replaced()
            old = _records.get(plan.name)
            if old is not None:
                _restore(old)
            for item in plan.swaps:
                item.commit()
    except BaseException as error:
        for plan in prepared:
            for item in plan.swaps:
                item.recall()
        for plan in prepared:
            for item in _records[plan.name].swaps if plan.name in _records else ():
                exchange(item.inner)
        for function, (state, original) in before.items():
            state.put(function)
            originals.pop(function, None)
            if original is not None:
                originals[function] = original
        if isinstance(error, ValueError):
            raise Unswappable(f"Python refuses the new code: {error}") from error
        raise
    for plan in prepared:
        _records[plan.name] = _Record(plan.patches, plan.swaps, plan.pending)


def _restore(record: _Record) -> None:
    for item in record.swaps:
        if item.function in originals:
            item.undo()


def _watch(names: Iterable[str]) -> None:
    """Have what waits swapped when its import ends, or now if that has begun. Not under the lock: it may wait for the import."""
    for name in names:
        when_imported(name, _on_import)


def _on_import(module: types.ModuleType) -> None:
    """Swap what was previewed, now that the module is there; where patchwork was imported again since, by that import of it."""
    getattr(sys.modules.get(__name__), "_swap_imported", _swap_imported)(module)


def _swap_imported(module: types.ModuleType) -> None:
    settle(module.__name__)  # in the importing thread itself this returns at once
    with _in_charge(), _collection_paused():
        record = _records.get(module.__name__)
        if record is None or not record.pending:
            return
        item = prepare_imported(module, record.patches)
        _commit([item])
        _outcomes.update({patch.name: _outcome(patch, item) for patch in record.patches})


@contextmanager
def _in_charge() -> Iterator[None]:
    """Hold the lock, and take over what an earlier import of patchwork has in force or waiting in this process."""
    with _lock:
        _take_over()
        yield


def _take_over() -> None:
    """Make the records of an earlier import of patchwork this one's; its import hooks stay, and call this one.

    Where the module has been loaded again, or is gone, they end: its functions get their code back.
    """
    earlier = {name: record for name, record in _records.items() if type(record) is not _Record}
    for name, record in earlier.items():
        if _stands(name, record.patches):
            _records[name] = _Record(_converted(record.patches, name), record.swaps, record.pending)
            continue
        _restore(_records.pop(name))
        for patch in record.patches:
            _outcomes.pop(patch.name, None)
    if earlier:
        _outcomes.update({name: _converted(outcome, name) for name, outcome in _outcomes.items()})


def _converted(value: object, name: str) -> Any:
    try:
        return as_ours(value)
    except (AttributeError, ImportError, TypeError) as error:
        raise ForeignPatch(
            f"{name} was patched by an earlier import of another patchwork in this process ({error})", hint="restart Python"
        ) from None


def _outcome(patch: Patch, item: Prepared) -> Outcome:
    waiting = "previewed; swapped when the module is imported"
    stuck = sum(one.stuck for one in item.swaps if one.qualname == patch.qualname)
    left = f"{stuck} function(s) that it made before keep their code" if stuck else ""
    note = "; ".join(filter(None, (_notes.get(patch.name, ""), left)))
    return outcome_of(patch, item.done, note, pending=item.pending, waiting=waiting)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Syntax trees make the garbage collector walk everything that torch has allocated, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
