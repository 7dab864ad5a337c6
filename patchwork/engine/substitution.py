"""Substitutes captured nodes for holes: the syntax tree that the filled text has to have."""

from __future__ import annotations

import ast

from .errors import InvalidResult
from .holes import hole_of, python_of
from .pattern import Bindings, many_in, many_parameters


def substituted(code: str, bindings: Bindings) -> ast.Module:
    """The tree of `code` with what each hole captured in its place.

    Raises:
        InvalidResult: a hole that has to be an identifier captured something else.
    """
    tree = ast.parse(python_of(code))
    _fill(tree, bindings)
    return tree


def _fill(node: ast.AST, bindings: Bindings) -> None:
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            setattr(node, name, [filled for item in value for filled in _items(item, bindings)])
        elif isinstance(value, ast.AST):
            setattr(node, name, _one(value, bindings))
        elif isinstance(value, str) and (hole := hole_of(value)):
            setattr(node, name, _identifier(hole, bindings))
    if isinstance(node, ast.Call):
        node.keywords = [item for item in node.args if isinstance(item, ast.keyword)] + node.keywords
        node.args = [item for item in node.args if not isinstance(item, ast.keyword)]


def _items(item: object, bindings: Bindings) -> list[object]:
    if many := many_in(item):
        captured = bindings[many]
        return list(captured) if isinstance(captured, tuple) else [captured]
    if isinstance(item, ast.AST):
        return [_one(item, bindings)]
    if isinstance(item, str) and (hole := hole_of(item)):
        return [_identifier(hole, bindings)]
    return [item]


def _one(node: ast.AST, bindings: Bindings) -> ast.AST:
    if isinstance(node, ast.Name) and (hole := hole_of(node.id)):
        captured = bindings[hole]
        return ast.Name(captured, ast.Load()) if isinstance(captured, str) else captured  # type: ignore[return-value]
    if many := many_in(node):  # alone where one expression stands: several make a tuple
        items = bindings[many]
        assert isinstance(items, tuple)
        return items[0] if len(items) == 1 else ast.Tuple(list(items), ast.Load())  # type: ignore[arg-type]
    if isinstance(node, ast.arguments) and (many := many_parameters(node)):
        held = bindings[many]
        assert isinstance(held, tuple)
        return held[0]
    _fill(node, bindings)
    return node


def _identifier(hole: str, bindings: Bindings) -> str:
    captured = bindings[hole]
    if isinstance(captured, str):
        return captured
    if isinstance(captured, ast.Name):
        return captured.id
    text = ast.unparse(captured) if isinstance(captured, ast.AST) else "several"
    raise InvalidResult(
        f"{hole} stands where only a name can, but captured {text}", hint="capture a name there, or write the code out"
    )
