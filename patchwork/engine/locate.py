"""Finds the definitions of a function in a module's syntax tree, by qualified name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .pattern import first_line

Function = ast.FunctionDef | ast.AsyncFunctionDef
# The fields that hold statements, in the order of the text: walking the expressions too takes ten times as long.
_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.Expr, ast.Import, ast.ImportFrom)  # the most frequent ones that hold no statements
_PARTS = {"fget": "property", "fset": "setter", "fdel": "deleter"}


def definitions(tree: ast.Module, qualname: str) -> list[Function]:
    """Every definition that `qualname` may mean, in order; overload stubs and other parts of a property left out.

    Functions inside functions have no name that a patch could give: their code belongs to the function around them.
    """
    *path, name = qualname.split(".")
    part = None
    if name in _PARTS and path:
        part, name = name, path.pop()
    scopes: list[ast.AST] = [tree]
    for step in path:
        scopes = [
            child for scope in scopes for child in _children(scope) if child.name == step and isinstance(child, ast.ClassDef)
        ]
    found = [child for scope in scopes for child in _children(scope) if child.name == name]
    functions = [child for child in found if isinstance(child, Function) and not _decorated(child, "overload")]
    return [function for function in functions if _is_part(function, part or "fget")]


def alone(tree: ast.Module, qualname: str) -> list[Function]:
    """The function that a text consists of, where that is all it holds: the source that a `Case` gives."""
    parts = qualname.split(".")
    name = parts[-2] if parts[-1] in _PARTS and len(parts) > 1 else parts[-1]
    body = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if len(body) == 1 and isinstance(body[0], Function) and body[0].name == name:
        return [body[0]]
    return []


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function below `tree` with its qualified name, nested ones excluded."""
    for child in _children(tree):
        name = prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from functions(child, name + ".")
        else:
            yield name, child


def _children(scope: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Definitions of a scope, also those under `if`, `try`, `with`, `match` and loops, but in no inner scope."""
    for block in _BLOCKS:
        for child in getattr(scope, block, ()):
            if isinstance(child, _NAMED):
                yield child
            elif not isinstance(child, _SIMPLE):
                yield from _children(child)


def decorators(function: Function) -> list[str]:
    """The decorators as dotted names, arguments left out; "" for one that is no name."""
    names = []
    for node in function.decorator_list:
        target = node.func if isinstance(node, ast.Call) else node
        names.append(ast.unparse(target) if isinstance(target, ast.Name | ast.Attribute) else "")
    return names


def _decorated(function: Function, name: str) -> bool:
    return any(decorator.rpartition(".")[2] == name for decorator in decorators(function))


def _is_part(function: Function, part: str) -> bool:
    if part == "fget":
        return not (_decorated(function, "setter") or _decorated(function, "deleter"))
    return _decorated(function, _PARTS[part])


def starts_at(function: Function) -> int:
    """First line of the definition as `co_firstlineno` counts it: the first decorator's."""
    return first_line(function)
