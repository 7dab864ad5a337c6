"""Finds the living function that runs a definition of a source file.

By the identity of its code, not by its attribute: methods sit under decorators. The code that the source on disk compiles to must
be the code that runs; otherwise the file changed, or somebody patched first, and the function is refused.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..environment.installed import compiling_loader
from ..errors import ForeignPatch, PatchError, SourceMismatch, TargetMissing
from ..locate import Function
from .inner_functions import apart_from_lines
from .record import original_code, originals
from .source_store import is_published

_WITH_FUNC = (functools.partial, functools.partialmethod, functools.cached_property, functools.singledispatchmethod)
_HOLDERS = (types.FunctionType, staticmethod, classmethod, functools.partial)
_NEUTRAL = {"builtins", "functools", "contextlib", "patchwork"}
_MOST_LAYERS = 1000


def owner_of(module: types.ModuleType, qualname: str) -> object:
    """The class that holds the method `qualname`."""
    path = qualname.split(".")
    return attribute_of(module, ".".join(path[: -2 if path[-1] in ("fget", "fset", "fdel") else -1]))


def code_of(module: types.CodeType, qualname: str, line: int) -> types.CodeType | None:
    """The code object of the definition of `qualname` that begins at `line`, in a compiled module; None for one in dead code."""
    path = [part for part in qualname.split(".") if part not in ("fget", "fset", "fdel")]
    scopes = [module]
    for name in path:
        scopes = [code for scope in scopes for code in _inner(scope) if code.co_name == name]
    return next((code for code in scopes if code.co_firstlineno == line), None)


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            if constant.co_name.startswith("<generic parameters"):
                yield from _inner(constant)


@dataclass(frozen=True)
class Live:
    """A living function, which of its definitions (by index) it runs, and the memoising layers above it.

    `apart`: the module's attribute does not lead to it; a decorator has put it elsewhere.
    """

    function: types.FunctionType
    index: int
    caches: tuple[object, ...]
    apart: bool = False


def find_live(module: types.ModuleType, qualname: str, codes: Sequence[types.CodeType | None], definition: Function) -> Live:
    """The living function behind `qualname`; `codes` are those of its definitions in the source.

    Raises:
        TargetMissing: the module has no such attribute.
        SourceMismatch: a function made from this file is there, but not from the file as it is now.
        ForeignPatch: something else is there, or between the attribute and the function.
    """
    attribute = attribute_of(module, qualname)
    seen = list(layers_of(attribute))
    functions = [(layer, above) for layer, above in seen if type(layer) is types.FunctionType]
    for layer, above in functions:
        if (index := _index_in(codes, layer, module)) is not None:
            _refuse_foreign(above, module, qualname, definition)
            caches = tuple(item for item in above if hasattr(item, "cache_clear"))
            return Live(layer, index, caches)
    for layer, _ in functions:
        if layer.__name__ == definition.name and _is_of(layer, module):
            raise _mismatch(original_code(layer), module, qualname)
    replaced = type(attribute) is types.FunctionType and "<locals>" not in attribute.__qualname__  # no decorator made that
    if definition.decorator_list and not replaced and _package_of(attribute) in _allowed(module, definition):
        # Whatever was defined in the module holds on to its names. All objects are walked, where torch is loaded for 0.3 s.
        held = [item for item in gc.get_referrers(vars(module)) if type(item) is types.FunctionType]
        found = [(item, index) for item in held if (index := _index_in(codes, item, module)) is not None]
        # A reload leaves the one that was patched before.
        found = [(item, index) for item, index in found if item not in originals] or found
        if len(found) == 1:
            return Live(*found[0], (), apart=True)
    raise _foreign(functions[0][0] if functions else attribute, module, qualname)


def _index_in(codes: Sequence[types.CodeType | None], function: types.FunctionType, module: types.ModuleType) -> int | None:
    """Which of `codes` a function runs. A reloader that compiles a function by itself gives it another file name and lines."""
    code = original_code(function)
    if code in codes:
        return codes.index(code)
    for index, other in enumerate(codes) if function.__globals__ is vars(module) else ():
        if other is None or (other.co_name, other.co_code) != (code.co_name, code.co_code):
            continue
        if other.co_filename != code.co_filename and apart_from_lines(other) == apart_from_lines(code):
            return index
    return None


def _is_of(function: types.FunctionType, module: types.ModuleType) -> bool:
    return function.__globals__ is vars(module) or function.__code__.co_filename == getattr(module, "__file__", None)


def attribute_of(module: types.ModuleType, qualname: str) -> object:
    found: object = module
    owner = ""
    for name in qualname.split("."):
        if isinstance(found, property) and name in ("fget", "fset", "fdel"):
            found = getattr(found, name)
            continue
        mangled = f"_{owner.lstrip('_')}{name}" if owner and name.startswith("__") and not name.endswith("__") else name
        names = vars(found) if isinstance(found, type | types.ModuleType) else {}
        if mangled not in names:
            raise TargetMissing(
                f"the imported module has no {qualname}",
                where=f"{module.__name__} ({getattr(module, '__file__', '?')})",
                hint="it may be defined only under a condition that does not hold here",
            )
        found, owner = names[mangled], name
    return found


def layers_of(item: object) -> Iterator[tuple[object, tuple[object, ...]]]:
    """`item` and what it wraps, nearest first, each once and with the layers above it; no property or descriptor is called."""
    queue: list[tuple[object, tuple[object, ...]]] = [(item, ())]
    seen: set[int] = set()
    for layer, above in queue:
        if id(layer) not in seen and len(seen) < _MOST_LAYERS:
            seen.add(id(layer))
            yield layer, above
            queue.extend((inner, (*above, layer)) for inner in _wrapped_by(layer))


def _wrapped_by(item: object) -> Iterator[object]:
    if isinstance(item, staticmethod | classmethod):
        yield item.__func__
    elif isinstance(item, property):
        yield item.fget
    elif isinstance(item, _WITH_FUNC):
        yield item.func
    elif (wrapped := inspect.getattr_static(item, "__wrapped__", None)) is not None:
        # A proxy keeps what it wraps in a slot, which may be read without running anybody's code.
        slot = isinstance(wrapped, types.GetSetDescriptorType | types.MemberDescriptorType)
        yield wrapped.__get__(item) if slot else wrapped
    elif not isinstance(item, type | types.ModuleType | types.FunctionType):
        # An object of a decorator's own class. Its own references, not its attributes, which may be properties.
        for content in gc.get_referents(item):
            values = content.values() if isinstance(content, dict) else (content,)
            yield from (value for value in values if isinstance(value, _HOLDERS))
    for cell in (item.__closure__ or ()) if type(item) is types.FunctionType else ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if isinstance(content, _HOLDERS):
            yield content


def _refuse_foreign(above: Sequence[object], module: types.ModuleType, qualname: str, definition: Function) -> None:
    allowed = _allowed(module, definition)
    for layer in above:
        if _package_of(layer) not in allowed:
            raise _foreign(layer, module, qualname)


def _allowed(module: types.ModuleType, definition: Function) -> set[str]:
    """The packages that may stand above a definition: its own, those of its decorators, and those that wrap for anybody."""
    return {module.__name__.partition(".")[0], *_NEUTRAL, *_decorator_packages(module, definition)}


def _decorator_packages(module: types.ModuleType, definition: Function) -> Iterator[str]:
    for node in definition.decorator_list:
        root: ast.AST = node
        while isinstance(root, ast.Call | ast.Attribute):
            root = root.func if isinstance(root, ast.Call) else root.value
        item = vars(module).get(root.id) if isinstance(root, ast.Name) else None
        name = item.__name__ if isinstance(item, types.ModuleType) else getattr(item, "__module__", None)
        if isinstance(name, str):
            yield name.partition(".")[0]


def _package_of(layer: object) -> str:
    """Whose a layer is: a function's by its globals (`functools.wraps` copies `__module__`), any other object's by its class."""
    name = layer.__globals__.get("__name__") if type(layer) is types.FunctionType else type(layer).__module__
    return str(name).partition(".")[0]


def _foreign(item: object, module: types.ModuleType, qualname: str) -> PatchError:
    loader = compiling_loader(module)
    if loader and loader.partition(".")[0] == _package_of(item):
        return _rewritten(loader, module, qualname)
    if type(item) is types.FunctionType:
        who = item.__globals__.get("__name__", "?")
        where = f"{item.__code__.co_filename}:{item.__code__.co_firstlineno}"
        return ForeignPatch(
            f"{qualname} was replaced or wrapped by {who} ({item.__code__.co_name})",
            where=where,
            hint="call patchwork.apply() before that code runs, or leave one of the two out",
        )
    return ForeignPatch(
        f"{qualname} is, or is wrapped by, a {type(item).__module__}.{type(item).__qualname__}, not what the source makes of it",
        where=repr(item)[:120],
        hint="call patchwork.apply() before whatever replaced it, or leave one of the two out",
    )


def _mismatch(code: types.CodeType, module: types.ModuleType, qualname: str) -> PatchError:
    """Why a function of this module runs code that its file does not hold."""
    where = f"{code.co_filename}:{code.co_firstlineno}"
    if is_published(code.co_filename):
        return ForeignPatch(
            f"{qualname} runs code that was put there by an earlier import of patchwork in this process, or by a reloader",
            where=where,
            hint="restart Python",
        )
    if loader := compiling_loader(module):
        return _rewritten(loader, module, qualname)
    return SourceMismatch(
        f"{qualname} does not run the code that its file holds",
        where=where,
        hint="the file changed after it was imported, or the function was edited in place: restart Python",
    )


def _rewritten(loader: str, module: types.ModuleType, qualname: str) -> SourceMismatch:
    name = module.__name__
    return SourceMismatch(
        f"{qualname} does not run the code that its file holds: {name} was loaded by {loader}, which compiles other code",
        where=str(getattr(module, "__file__", "")),
        hint=f"leave {name} out of that import hook: a patch needs the code of the file itself. If the hook leaves {name} as it "
        "is, the file changed after the import: restart Python",
    )
