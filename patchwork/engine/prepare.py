"""What will patches change in one module? Its source rewritten and compiled, its living functions found; nothing changed yet."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from . import swap
from .bytecode import code_on_disk
from .errors import InvalidPatch, MissingName, PatchError, TargetMissing
from .files import publish
from .installed import ModuleSource, loaded, read_source, spec_of
from .locate import Function, definitions, starts_at
from .patch import Parameter, Patch
from .rewriting import Rewrite, rewrite
from .swap import Live, Swap
from .text import Source, compiled, decode

# What evaluating a default can raise that is the patch's fault; anything else is not ours to name.
_BAD_DEFAULT = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)


@dataclass
class Prepared:
    """A module's patches, planned: what will be swapped, or (`pending`) that it waits for the import."""

    name: str
    patches: tuple[Patch, ...]
    done: Rewrite[bytes]
    swaps: list[Swap]
    pending: bool


def prepare(name: str, patches: tuple[Patch, ...]) -> Prepared:
    """Plan all patches of one module; one that is not imported is previewed.

    Raises:
        PatchError: whatever stops one of them; always with a patch and its target filled in.
    """
    try:
        spec = spec_of(name)
        if spec is None:
            raise TargetMissing(f"there is no module {name} any more")
        source = read_source(spec)
        module = loaded(name)
        if module is None:
            return Prepared(name, patches, dry_run(source, patches), [], pending=True)
        return _plan_swaps(source, module, patches)
    except PatchError as error:
        raise error.about(patch=patches[-1].name, target=patches[-1].target, file=name) from None


def prepare_imported(module: types.ModuleType, patches: tuple[Patch, ...]) -> Prepared:
    """Plan the swaps of a module that is at the end of its import."""
    try:
        spec = module.__spec__
        if spec is None:
            raise TargetMissing(f"{module.__name__} was imported without a spec")
        return _plan_swaps(read_source(spec), module, patches)
    except PatchError as error:
        raise error.about(patch=patches[-1].name, target=patches[-1].target, file=module.__name__) from None


def dry_run(source: ModuleSource, patches: Sequence[Patch]) -> Rewrite[bytes]:
    """The rewrite of a module that is not imported, wherever its source lies: drift and missing names show, nothing changes.

    Raises:
        PatchError: whatever stops one of the patches.
    """
    done = _rewritten(source, patches, {})
    changing = [patch for patch in patches if done.states[patch.name] == "applied"]
    if not changing:
        return done
    before, after = Source(decode(source.data)[0]), Source(decode(done.source)[0])
    old = compiled(before.tree, source.path)
    pairs = {
        patch.qualname: [
            (code, two)
            for one, two in zip(definitions(before.tree, patch.qualname), definitions(after.tree, patch.qualname), strict=True)
            if (code := swap.code_of(old, patch.qualname, starts_at(one))) is not None
        ]
        for patch in changing
    }
    new = _compiled(done.source, after, source.path, pairs)
    names = swap.module_names(before)
    for patch in changing:
        for one, two in pairs[patch.qualname]:
            _check(one, _code_of(new, patch.qualname, two), names, patch)
    return done


def _rewritten(source: ModuleSource, patches: Sequence[Patch], lines: Mapping[str, int]) -> Rewrite[bytes]:
    try:
        return rewrite(source.data, patches, lines=lines)
    except PatchError as error:
        error.file = source.path
        raise


def _plan_swaps(source: ModuleSource, module: types.ModuleType, patches: tuple[Patch, ...]) -> Prepared:
    before = Source(decode(source.data)[0])
    old = code_on_disk(source, before.tree)
    live: dict[str, Live] = {}
    lines: dict[str, int] = {}
    for patch in patches:
        found = definitions(before.tree, patch.qualname)
        if not found or patch.qualname in live:
            continue  # rewrite() says what is missing
        with _named(patch):
            codes = [swap.code_of(old, patch.qualname, starts_at(item)) for item in found]
            live[patch.qualname] = swap.find_live(module, patch.qualname, codes, found[0])
            lines[patch.qualname] = starts_at(found[live[patch.qualname].index])
    done = _rewritten(source, patches, lines)
    changing = [patch for patch in patches if done.states[patch.name] == "applied"]
    swaps = _swaps(source, module, changing, done, live) if changing else []
    return Prepared(source.name, patches, done, swaps, pending=False)


def _swaps(
    source: ModuleSource, module: types.ModuleType, patches: Sequence[Patch], done: Rewrite[bytes], live: Mapping[str, Live]
) -> list[Swap]:
    filename = publish(source.name, done.source)
    after = Source(decode(done.source)[0])
    pairs = {
        patch.qualname: [
            (
                swap.original_code(live[patch.qualname].function),
                definitions(after.tree, patch.qualname)[live[patch.qualname].index],
            )
        ]
        for patch in patches
    }
    new = _compiled(done.source, after, filename, pairs)
    swaps: dict[types.FunctionType, Swap] = {}  # `C.p` and `C.p.fget` are one
    for patch in patches:
        [(old, definition)] = pairs[patch.qualname]
        code = _code_of(new, patch.qualname, definition)
        _check(old, code, set(vars(module)), patch)
        at = live[patch.qualname]
        chosen = swaps.setdefault(at.function, Swap(patch.qualname, at.function, code, caches=at.caches))
        for change in patch.edits:
            if isinstance(change, Parameter):
                chosen.kwdefaults[change.name] = _default(change, module, patch)
    return list(swaps.values())


def _compiled(
    data: bytes, after: Source, filename: str, pairs: Mapping[str, Sequence[tuple[types.CodeType, Function]]]
) -> types.CodeType:
    """The edited module's code, in which each definition still holds the enclosing variables that its old code held."""
    new = compiled(data, filename)
    dropped = False
    for qualname, functions in pairs.items():
        for old, definition in functions:
            lost = sorted(set(old.co_freevars) - set(_code_of(new, qualname, definition).co_freevars))
            swap.keep_alive(definition, lost)
            dropped = dropped or bool(lost)
    return compiled(after.tree, filename) if dropped else new


def _code_of(new: types.CodeType, qualname: str, definition: Function) -> types.CodeType:
    code = swap.code_of(new, qualname, starts_at(definition))
    assert code is not None, "an edit inside a function does not make its definition dead code"
    return code


def _check(old: types.CodeType, new: types.CodeType, names: set[str] | None, patch: Patch) -> None:
    with _named(patch):
        swap.check_fit(old, new, patch.qualname)
        swap.check_names(old, new, names, patch.qualname)
        for change in patch.edits:
            if isinstance(change, Parameter):
                swap.check_names(old, compile(change.default.strip(), "<default>", "eval"), names, patch.qualname)


def _default(change: Parameter, module: types.ModuleType, patch: Patch) -> object:
    try:
        return eval(change.default.strip(), vars(module))
    except _BAD_DEFAULT as error:
        kind = MissingName if isinstance(error, NameError) else InvalidPatch
        raise kind(
            f"the default of parameter {change.name} cannot be evaluated: {type(error).__name__}: {error}",
            patch=patch.name,
            target=patch.target,
            where=change.default,
        ) from None


@contextmanager
def _named(patch: Patch) -> Iterator[None]:
    try:
        yield
    except PatchError as error:
        raise error.about(patch=patch.name, target=patch.target) from None
