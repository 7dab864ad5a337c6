"""Checks that new code fits the living function, and that the names which it loads exist in the module."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import re
import symtable
import types
import warnings

from ..errors import MissingName, Unswappable
from ..scopes import bindings_in
from ..text import Source

_UNKNOWABLE = re.compile(r"\bglobals\b|\bimport\s*\*")  # may also stand in a string or comment
_NEVER = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING", "False", "0")
_KINDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def check_fit(old: types.CodeType, new: types.CodeType, qualname: str) -> None:
    """Raise Unswappable if `new` cannot take the place of `old`: another kind of function, or other enclosing variables.

    Variables that the edit no longer uses are kept alive before this is asked.
    """
    if old.co_flags & _KINDS != new.co_flags & _KINDS:
        raise Unswappable(
            f"the edit makes {qualname} another kind of function (plain, generator, coroutine, async generator)",
            hint="move the `yield` or `await` into a function inside it",
        )
    lost = sorted(set(old.co_freevars) - set(new.co_freevars))
    if lost:
        raise Unswappable(
            f"the edit makes {', '.join(lost)}, which {qualname} took from an enclosing scope, a name of its own",
            hint="give the new variable another name",
        )
    added = sorted(set(new.co_freevars) - set(old.co_freevars))
    if added:
        raise Unswappable(
            f"the edit makes {qualname} use {', '.join(added)} of an enclosing scope, which the living function does not hold",
            hint="super() needs a first parameter; other names of an enclosing scope cannot be had later",
        )


def check_names(old: types.CodeType, new: types.CodeType, known: set[str] | None, qualname: str) -> None:
    """Raise MissingName for a global that `new` loads, `old` did not, and neither the module, builtins nor `new` itself makes."""
    if known is None:
        return
    unknown = _globals(new, "LOAD") - known - set(vars(builtins))
    if absent := unknown and unknown - _globals(old, "LOAD") - _globals(new, "STORE"):
        raise MissingName(
            f"the inserted code of {qualname} uses {', '.join(sorted(absent))}, which the module does not define",
            hint="import it in the inserted code itself",
        )


def _globals(code: types.CodeType, access: str) -> set[str]:
    """The globals that a code, or code in it, loads ("LOAD") or stores ("STORE")."""
    steps = [(step.opname, str(step.argval)) for step in dis.get_instructions(code)]
    names = {name for operation, name in steps if operation == f"{access}_GLOBAL"}
    if access == "LOAD":  # the body of a class looks into itself first
        own = {name for operation, name in steps if operation == "STORE_NAME"}
        names |= {name for operation, name in steps if operation == "LOAD_NAME"} - own
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals(constant, access)
    return names


def module_names(source: Source) -> set[str] | None:
    """Names that a module binds, read from its source; None where a star import or `globals()` makes that unknowable."""
    for node in ast.walk(source.tree) if _UNKNOWABLE.search(source.text) else ():
        if (isinstance(node, ast.alias) and node.name == "*") or (isinstance(node, ast.Name) and node.id == "globals"):
            return None
    names = {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__path__", "__builtins__"}
    declared = set[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        top = symtable.symtable(source.text, "<module>", "exec")
    scopes = [top]
    while scopes:
        scope = scopes.pop()
        scopes.extend(scope.get_children())
        for symbol in scope.get_symbols():
            if (scope is top or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                (names if scope is top else declared).add(symbol.get_name())
    return names - _never_bound(source.tree) | declared


def _never_bound(tree: ast.Module) -> set[str]:
    """The names that a module's own statements bind only where no Python runs: under `if TYPE_CHECKING:` or `if False:`."""
    never, others, queue = set[str](), list[ast.stmt](), list[ast.stmt](tree.body)
    for statement in queue:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in _NEVER:
            never |= {item.name for child in statement.body for item in bindings_in(child)}
            queue.extend(statement.orelse)
        else:
            others.append(statement)
    return never - {item.name for statement in others for item in bindings_in(statement)} if never else never
