"""Keeps the free variables of new code those of the living function, whose cells cannot be added or removed.

Both ways of seeing to that change the syntax tree that is compiled, never the text that people are shown.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ..locate import Function

# Stands in compiled code for a class that is known only where there is a living one.
_CLASS = "<patchwork: the class that this method is defined in>"
_Node = TypeVar("_Node", bound=ast.AST)
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def keep_alive(function: Function | ast.Lambda, names: Sequence[str]) -> None:
    """Give `function` a dead reference to variables that the edit no longer uses, so that its closure keeps its layout."""
    for name in names:
        reference = ast.Name(name, ast.Load())
        if isinstance(function, ast.Lambda):
            function.body = _placed(ast.IfExp(ast.Constant(True), function.body, reference), function.body)
        else:
            function.body.append(_placed(ast.If(ast.Constant(False), [ast.Expr(reference)], []), function.body[-1]))


def give_class(method: Function) -> bool:
    """Let `method` hold its class in a variable of its own, since the living function has no cell for it; False if it cannot.

    What `super()` looks for is a cell around the function that it is called in, so it is called in one inside the method:

        __class__ = (the class)
        (lambda self: super())(self)

    `with_class` puts the class in.
    """
    parameters = [*method.args.posonlyargs, *method.args.args]
    calls = [call for statement in method.body for call in _own_calls(statement)]
    declared = any("__class__" in node.names for node in ast.walk(method) if isinstance(node, ast.Nonlocal | ast.Global))
    if declared or (calls and not parameters):
        return False
    for call in calls:
        name = parameters[0].arg
        arguments = ast.arguments([], [ast.arg(name)], None, [], [], None, [])
        inner = ast.Lambda(arguments, ast.Call(call.func, [], []))
        call.func, call.args = _placed(inner, call), [_placed(ast.Name(name, ast.Load()), call)]
    held = ast.Assign([ast.Name("__class__", ast.Store())], ast.Constant(_CLASS))
    method.body.insert(0, _placed(held, method.body[0]))
    return True


def calls_super(function: Function) -> bool:
    """Whether `super()` without arguments is called in the function itself."""
    return any(True for statement in function.body for _ in _own_calls(statement))


def lacks_class(code: types.CodeType) -> bool:
    """Whether `give_class` left a place in this method for its class."""
    return _CLASS in code.co_consts


def with_class(code: types.CodeType, owner: object) -> types.CodeType:
    """`code` with `owner` in that place."""
    return code.replace(co_consts=tuple(owner if constant == _CLASS else constant for constant in code.co_consts))


def _own_calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of `super()` without arguments that are in no function or class inside; a comprehension is none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
        yield node
        return
    body = [node.body] if isinstance(node, ast.Lambda) else node.body if isinstance(node, _Scope) else []
    for child in ast.iter_child_nodes(node):
        if not any(child is item for item in body):  # what is left of an inner function is evaluated around it
            yield from _own_calls(child)


def _placed(node: _Node, like: ast.AST) -> _Node:
    return ast.fix_missing_locations(ast.copy_location(node, like))
