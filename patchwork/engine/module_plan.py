"""Plans patches on one module: its source rewritten and compiled, its living functions found; nothing is changed yet."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeGuard

from .environment.installed import ModuleSource, loaded, read_source, spec_of
from .errors import InvalidPatch, MissingName, PatchError, TargetMissing, Unswappable
from .live.fit import check_fit, check_names, module_names
from .live.free_variables import calls_super, give_class, keep_alive, lacks_class, with_class
from .live.inner_functions import exchanged, inner_pairs
from .live.lookup import Live, code_of, find_live, owner_of
from .live.pyc import code_on_disk
from .live.record import original_code, sharing
from .live.source_store import publish
from .live.swap import Swap
from .locate import Function, definitions, starts_at
from .patch import Parameter, Patch
from .rewriting import Rewrite, rewrite_module
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
    before = Source(decode(source.data)[0])
    done, after = _rewritten(source, before, patches, {})
    changing = [patch for patch in patches if done.states[patch.name] == "applied"]
    if not changing:
        return done
    old = compiled(before.tree, source.path)
    pairs = {
        patch.qualname: [
            (code, two)
            for one, two in zip(definitions(before.tree, patch.qualname), definitions(after.tree, patch.qualname), strict=True)
            if (code := code_of(old, patch.qualname, starts_at(one))) is not None
        ]
        for patch in changing
    }
    new = _compiled(after, source.path, pairs)
    names = module_names(before)
    for patch in changing:
        for one, two in pairs[patch.qualname]:
            _check(one, _code_of(new, patch.qualname, two), two, names, patch)
    return done


def _rewritten(
    source: ModuleSource, before: Source, patches: Sequence[Patch], lines: Mapping[str, int]
) -> tuple[Rewrite[bytes], Source]:
    try:
        return rewrite_module(source.data, before, patches, lines)
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
            codes = [code_of(old, patch.qualname, starts_at(item)) for item in found]
            live[patch.qualname] = find_live(module, patch.qualname, codes, found[0])
            lines[patch.qualname] = starts_at(found[live[patch.qualname].index])
    done, after = _rewritten(source, before, patches, lines)
    changing = [patch for patch in patches if done.states[patch.name] == "applied"]
    filename = publish(source.name, done.source) if changing else ""
    swaps = _swaps(module, changing, after, filename, live) if changing else []
    return Prepared(source.name, patches, done, swaps, pending=False)


def _swaps(
    module: types.ModuleType, patches: Sequence[Patch], after: Source, filename: str, live: Mapping[str, Live]
) -> list[Swap]:
    pairs = {
        patch.qualname: [
            (
                original_code(live[patch.qualname].function),
                definitions(after.tree, patch.qualname)[live[patch.qualname].index],
            )
        ]
        for patch in patches
    }
    new = _compiled(after, filename, pairs)
    swaps: dict[types.FunctionType, Swap] = {}  # `C.p` and `C.p.fget` are one
    for patch in patches:
        [(old, definition)] = pairs[patch.qualname]
        code = _code_of(new, patch.qualname, definition)
        _check(old, code, definition, set(vars(module)), patch)
        if lacks_class(code):
            code = with_class(code, owner_of(module, patch.qualname))
        at = live[patch.qualname]
        if at.function not in swaps:
            inner, stuck = exchanged(old, code)
            apart = module.__spec__ if at.apart else None
            swaps[at.function] = Swap(patch.qualname, at.function, code, {}, at.caches, inner, stuck, apart)
        chosen = swaps[at.function]
        for change in patch.edits:
            if isinstance(change, Parameter):
                chosen.kwdefaults[change.name] = _default(change, module, patch)
    return [item for chosen in swaps.values() for item in (chosen, *_shared(chosen, module))]


def _shared(chosen: Swap, module: types.ModuleType) -> Iterator[Swap]:
    """The same swap for the functions that a reloader has replaced and given the new one's code, which others still hold."""
    for function in sharing(chosen.function):
        yield replace(chosen, function=function, caches=(), inner=(), stuck=0, apart=module.__spec__)


def _compiled(after: Source, filename: str, pairs: Mapping[str, Sequence[tuple[types.CodeType, Function]]]) -> types.CodeType:
    """The edited module's code, in which each definition, and each function in it, holds the enclosing variables that it held."""
    new = compiled(after.tree, filename)
    changed = False
    for qualname, functions in pairs.items():
        for old, definition in functions:
            code = _code_of(new, qualname, definition)
            for one, two in ((old, code), *inner_pairs(old, code)):
                changed = _keep_cells(one, two, definition) or changed
    return compiled(after.tree, filename) if changed else new


def _keep_cells(old: types.CodeType, new: types.CodeType | None, definition: Function) -> bool:
    """See to it that a function inside `definition`, or itself, has the cells it had; whether that changed the tree."""
    if new is None or set(new.co_freevars) == set(old.co_freevars):
        return False
    lost = sorted(set(old.co_freevars) - set(new.co_freevars))
    here = [node for node in ast.walk(definition) if _is_made(node, new)]
    if len(here) != 1:  # two lambdas in one line
        return False
    keep_alive(here[0], lost)
    added = set(new.co_freevars) - set(old.co_freevars)
    return bool(lost) or (added == {"__class__"} and here[0] is definition and give_class(definition))


def _is_made(node: ast.AST, code: types.CodeType) -> TypeGuard[Function | ast.Lambda]:
    """Whether this piece of the tree gives that code."""
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    return isinstance(node, Function) and node.name == code.co_name and starts_at(node) == code.co_firstlineno


def _code_of(new: types.CodeType, qualname: str, definition: Function) -> types.CodeType:
    code = code_of(new, qualname, starts_at(definition))
    assert code is not None, "an edit inside a function does not make its definition dead code"
    return code


def _check(old: types.CodeType, new: types.CodeType, definition: Function, names: set[str] | None, patch: Patch) -> None:
    with _named(patch):
        if calls_super(definition) and "__class__" not in new.co_freevars and not lacks_class(new):
            raise Unswappable(
                f"the edit makes {patch.qualname} call super(), but it is in no class", hint="name the class: super(C, x)"
            )
        check_fit(old, new, patch.qualname)
        check_names(old, new, names, patch.qualname)
        for change in patch.edits:
            if isinstance(change, Parameter):
                check_names(old, compile(change.default.strip(), "<default>", "eval"), names, patch.qualname)


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
