"""Finds the functions that a function made before it was patched: closures, wrappers, methods of its classes."""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Iterable, Iterator
from itertools import zip_longest

_KINDS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
Pair = tuple[types.CodeType, types.CodeType | None]


def inner_pairs(old: types.CodeType, new: types.CodeType | None) -> Iterator[Pair]:
    """The code of every function inside `old`, and of the same one inside `new`: the same name, and as many of it; else None."""
    theirs = list(_inner(new)) if new is not None else []
    ours = list(_inner(old))
    for name in dict.fromkeys(code.co_name for code in ours):
        before = [code for code in ours if code.co_name == name]
        after = [code for code in theirs if code.co_name == name]
        for one, two in zip_longest(before, after if len(after) == len(before) else []):
            is_function = one.co_flags & inspect.CO_OPTIMIZED and (name == "<lambda>" or not name.startswith("<"))
            if is_function:  # not the body of a class, nor a comprehension, which nobody holds
                yield one, two
            yield from inner_pairs(one, two)


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, types.CodeType))


def exchanged(old: types.CodeType, new: types.CodeType) -> tuple[tuple[tuple[types.CodeType, types.CodeType], ...], int]:
    """Pairs (old code, new code) for functions created before the patch, and the number that cannot be given new code."""
    fitting, stuck = [], []
    for one, two in inner_pairs(old, new):
        if two is not None and _outside(one) == _outside(two):
            if apart_from_lines(one) != apart_from_lines(two):
                fitting.append((one, two))
        else:
            stuck.append(one)
    return tuple(fitting), sum(1 for _ in made_with(stuck))


def exchange(pairs: Iterable[tuple[types.CodeType, types.CodeType]]) -> None:
    """Give every living function that runs the first code of a pair the second."""
    by_id = {id(old): new for old, new in pairs}
    for function in list(made_with([old for old, _ in pairs])):
        function.__code__ = by_id[id(function.__code__)]


def made_with(codes: list[types.CodeType]) -> Iterator[types.FunctionType]:
    """The living functions that run one of these very code objects. Walks all objects, where torch is loaded for 0.3 s."""
    wanted = {id(code) for code in codes}
    for item in gc.get_referrers(*codes) if codes else ():
        if type(item) is types.FunctionType and id(item.__code__) in wanted:
            yield item


def _outside(code: types.CodeType) -> tuple[object, ...]:
    """What the function object around the code goes by: parameters, kind, cells."""
    parameters = code.co_argcount + code.co_kwonlyargcount
    return (code.co_argcount, code.co_posonlyargcount, code.co_varnames[:parameters], code.co_flags & _KINDS, code.co_freevars)


def apart_from_lines(code: types.CodeType) -> types.CodeType:
    """The code without its file and line numbers, to compare by what it does."""
    constants = tuple(apart_from_lines(item) if isinstance(item, types.CodeType) else item for item in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=constants)
