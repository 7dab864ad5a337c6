"""A hard case: a declaration that any tool which changes installed functions can be asked to carry out.

A row holds inputs of one kind. An input is a package `lib` with a module, a change of one of its functions, an expression that
looks at what the function does, and what that gives before and after. Nothing in it belongs to one tool alone.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from patchwork import required
from patchwork.engine.locate import definitions
from patchwork.engine.pattern import first_line
from patchwork.engine.text import decode, lines_of


@dataclass(frozen=True)
class Change:
    """One change of one function, said twice: as edits of patchwork, and as the text that gives way to another.

    Attributes:
        target: `Class.method` in `lib.core`, or `module:Class.method`.
        edits: what patchwork is given.
        old, new: what a tool that works on text is given; further lines of `new` take the indentation of the line of `old`.
        was: the function that the change was written for, where upstream has moved on since; "" where it is the same.
        handle: an expression for the function that other tools are handed, where it is not found by the target's dots.
        inner: the function to read in the source, where it has a name that no target can have (`make.inner`).
        places: which of the occurrences of `old` are meant; an author sees that, though `str.replace` does not.
    """

    target: str
    edits: tuple[object, ...]
    old: str
    new: str
    was: str = ""
    handle: str = ""
    inner: str = ""
    places: tuple[int, ...] = (0,)

    @property
    def module(self) -> str:
        return self.target.partition(":")[0] if ":" in self.target else "lib.core"

    @property
    def qualname(self) -> str:
        return self.target.rpartition(":")[2]


def change(
    target: str,
    old: str,
    new: str,
    *edits: object,
    was: str = "",
    handle: str = "",
    inner: str = "",
    places: tuple[int, ...] = (0,),
) -> Change:
    """A change; without edits, patchwork is given the same text as pattern and replacement."""
    return Change(target, edits or (required(old).replace(new),), old, new, was, handle, inner, places)


@dataclass(frozen=True)
class Refused:
    """What an input that asks for a refusal expects: patchwork's kind of error, and words that it must hold."""

    kind: str
    words: tuple[str, ...] = ()


class Engine(Protocol):
    """A tool under test."""

    name: str

    def apply(self, changes: Iterable[Change]) -> object: ...
    def revert(self, changes: Iterable[Change]) -> object: ...


def _apply(engine: Engine, changes: tuple[Change, ...]) -> object:
    return engine.apply(changes)


@dataclass(frozen=True)
class Input:
    """One input of a kind.

    Attributes:
        words: what is special about it.
        source: `lib/core.py`; text is dedented.
        changes: what is to be changed.
        use: an expression over the module's names, `core`, `kept` and some of the standard library.
        stock, patched: what `use` gives without and with the change; `patched` may be `Refused`.
        also: what `use` may give as well: a tool that can do what the row lets a tool refuse.
        others: further files below the root, by path.
        load: modules imported before the change, besides `module`.
        before: an expression evaluated before the change; its value is `kept`.
        act: how the change is carried out, where that is more than applying it.
        setup: what is done to the files before anything is imported.
        module: the module that is imported.
        after: the bytes that the file would have with the change made, where they are the point.
        python: the first version of Python that can read the source.
        not_for: why other tools cannot be asked, or "".
        live_only: whether the change makes sense only after the import.
    """

    words: str
    source: str | bytes
    changes: tuple[Change, ...]
    use: str
    stock: object
    patched: object
    others: Mapping[str, str | bytes] = field(default_factory=dict)
    load: tuple[str, ...] = ()
    before: str = ""
    act: Callable[[Engine, tuple[Change, ...]], object] = _apply
    setup: Callable[[Path], object] | None = None
    module: str = "lib.core"
    after: bytes | None = None
    python: tuple[int, int] = (3, 10)
    not_for: str = ""
    live_only: bool = False
    also: tuple[object, ...] = ()

    def write(self, root: Path) -> None:
        """Put the files below `root`."""
        files = {"lib/__init__.py": "", "lib/core.py": self.source, **self.others}
        for path, source in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            data = source if isinstance(source, bytes) else textwrap.dedent(source).lstrip("\n").encode()
            (root / path).write_bytes(data)
        if self.setup is not None:
            self.setup(root)


@dataclass(frozen=True)
class Row:
    """One row of the table: a kind of case."""

    number: int
    words: str
    inputs: tuple[Input, ...]

    def id_of(self, item: Input) -> str:
        """The name that tests and reports use."""
        return f"row_{self.number:02}_{'_'.join(self.words.split())}-{'_'.join(item.words.split())}"


@dataclass(frozen=True)
class TextEdit:
    """A change as its author writes it for a tool on text, functions dedented as `inspect.getsource` and `dedent` give them.

    Attributes:
        before, after: the function that it was written for, and what that becomes.
        old, new: the text that gives way, and what takes its place.
    """

    before: str
    after: str
    old: str
    new: str


def text_edit(item: Input, wanted: Change) -> TextEdit:
    """A change as text."""
    before = wanted.was or _function(item, wanted)
    pieces = before.split(wanted.old)
    if len(pieces) <= max(wanted.places):
        raise AssertionError(f"{item.words}: {wanted.old!r} is not in the function that the change was written for:\n{before}")
    line = next(line for line in before.splitlines() if wanted.old.splitlines()[0] in line)
    new = wanted.new.replace("\n", "\n" + line[: len(line) - len(line.lstrip())])
    after = pieces[0] + "".join((new if place in wanted.places else wanted.old) + piece for place, piece in enumerate(pieces[1:]))
    return TextEdit(before, after, wanted.old, new)


def _function(item: Input, wanted: Change) -> str:
    path = wanted.module.replace(".", "/") + ".py"
    source = item.source if path == "lib/core.py" else item.others[path]
    text = decode(source)[0] if isinstance(source, bytes) else textwrap.dedent(source)
    tree = ast.parse(text)
    if wanted.inner:
        scope: ast.AST = tree
        for name in wanted.inner.split("."):
            scope = next(node for node in ast.walk(scope) if getattr(node, "name", None) == name)
        assert isinstance(scope, ast.FunctionDef)
        node = scope
    else:
        node = definitions(tree, wanted.qualname)[0]
    lines = [line.rstrip("\r\n") + "\n" for line in lines_of(text)]
    return textwrap.dedent("".join(lines[first_line(node) - 1 : node.end_lineno]))
