"""Does the source already have what a change would make?"""

from __future__ import annotations

import ast

from .errors import PartlyNative
from .holes import python_of
from .locate import Function
from .narrowing import places
from .patch import Anchor, Edit, Parameter
from .pattern import Match, shape, tells
from .splicing import call_of, is_inserted
from .text import Source


def stands(edit: Edit, matches: list[Match], source: Source, function: Function) -> bool:
    """Whether the source already is as the edit makes it.

    Raises:
        PartlyNative: at some of the matches it is, and at others not.
    """
    if edit.action == "remove":
        return False
    if edit.action.startswith("insert"):
        there = [is_inserted(edit, match, source, function) for match in matches]
    else:
        anchor, pattern = edit.anchor, made_by(edit)
        made = places(Anchor(pattern, inside=anchor.inside, after=anchor.after, before=anchor.before), function)
        if not tells(pattern) or len(made) < (anchor.count or anchor.at_least or 1):
            return False
        inside = {id(child) for match in made for node in match.nodes for child in ast.walk(node)}
        there = [id(match.nodes[0]) in inside for match in matches] or [True]
    if any(there) and not all(there):
        lines = [match.line for match, done in zip(matches, there, strict=True) if done]
        raise PartlyNative(
            f"the source has what {edit.action} makes at some matches of its anchor only: {edit.anchor.pattern}",
            where=f"there already at lines {', '.join(map(str, lines))}; {len(matches)} matches",
            hint="look at the release and narrow the anchor, or `versions`",
        )
    return any(there)


def made_by(edit: Edit) -> str:
    """The pattern of what an edit leaves behind: of an insert the inserted code."""
    if edit.action != "set_argument":
        return edit.code
    tree = ast.parse(python_of(edit.anchor.pattern))
    call = call_of(tree.body[0], edit.anchor.pattern)
    value = ast.parse(python_of(edit.code), mode="eval").body
    call.keywords = [keyword for keyword in call.keywords if keyword.arg != edit.name]
    call.keywords.append(ast.keyword(edit.name, value))
    return ast.unparse(tree)


def starts_with(body: list[ast.stmt], code: str) -> bool:
    """Whether a function's body begins, below its docstring, with the statements of `code`."""
    wanted = ast.parse(python_of(code)).body
    first = body[0]
    skip = int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))
    return shape(body[skip : skip + len(wanted)]) == shape(wanted)


def has_default(change: Parameter, arguments: ast.arguments) -> bool:
    """Whether the parameter that stands already has the default that the patch would give it."""
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    defaults = {a.arg: default for a, default in (*with_default, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))}
    found = defaults.get(change.name)
    return found is not None and shape(found) == shape(ast.parse(change.default.strip(), mode="eval").body)
