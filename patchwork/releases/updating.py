"""Writes changed entries into the text of the matrix file; comments elsewhere stay."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from .expectations import Matrix

Ranges = Mapping[str, Sequence[str]]


def ranges_of(states: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Ranges by state for `(release, state)` in ascending order: each begins at a release, the last is open."""
    runs = [(state, next(run)[0]) for state, run in groupby(states, key=lambda item: item[1])]
    ends = [f",<{first}" for _, first in runs[1:]] + [""]
    found: dict[str, list[str]] = {}
    for (state, first), end in zip(runs, ends, strict=True):
        found.setdefault(state, []).append(f">={first}{end}")
    return found


def updated(
    matrix: Matrix,
    *,
    expected: Mapping[str, Ranges] | None = None,
    added: Mapping[str, Sequence[str]] | None = None,
    replaced: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The file's text with new entries.

    Args:
        matrix: as it was read.
        expected: by patch name, its ranges by state, in place of what stands there.
        added: by package, releases to list after the last one.
        replaced: by package, a listed release and the one that takes its place, in cells as well.
    """
    root = yaml.compose(matrix.text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.Node), "the text was read before"
    sections = _mapping(root)
    splices = _expected_splices(matrix.text, sections["expected"], expected or {})
    packages = _mapping(sections["packages"])
    for package, releases in (added or {}).items():
        items = _mapping(packages[package])["releases"]
        lines = [f"- {_plain(release)}" for release in releases]
        splices.append(_append(matrix.text, items, lines, [_plain(release) for release in releases]))
    for package, pairs in (replaced or {}).items():
        cells = sections["cells"].value if "cells" in sections else []
        nodes = [cell[package] for cell in map(_mapping, cells) if package in cell]
        nodes += _mapping(packages[package])["releases"].value
        splices += [(*_span(node), _plain(pairs[node.value])) for node in nodes if node.value in pairs]
    text = matrix.text
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def write(path: Path, text: str) -> None:
    """Replace the file as a whole: nobody sees half of it."""
    handle, temporary = tempfile.mkstemp(dir=path.resolve().parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        os.chmod(temporary, path.stat().st_mode)
        os.replace(temporary, path.resolve())
    except BaseException:
        os.unlink(temporary)
        raise


def _expected_splices(text: str, section: yaml.Node, expected: Mapping[str, Ranges]) -> list[tuple[int, int, str]]:
    present = _mapping(section)
    changed = {name: ranges for name, ranges in expected.items() if name in present}
    splices = [(*_span(present[name]), _entry(text, present[name], ranges)) for name, ranges in changed.items()]
    fresh = [f"{name}: {_flow(ranges)}" for name, ranges in expected.items() if name not in present]
    if fresh and present:
        splices.append(_append(text, section, fresh, fresh))
    elif fresh:  # `expected: {}`
        start, end = _span(section)
        start = len(text[:start].rstrip(" "))
        splices.append((start, end, "".join(f"{_newline(text)}  {line}" for line in fresh)))
    return splices


def _append(text: str, collection: Any, lines: Sequence[str], items: Sequence[str]) -> tuple[int, int, str]:
    """A splice after a collection's last entry: lines of their own in block style, items in flow style."""
    end = _end(collection.value[-1])
    if collection.flow_style:
        return end, end, "".join(f", {item}" for item in items)
    rest = re.compile(r"\r|\n|\Z").search(text, end)  # a comment behind the last entry stays with it
    assert rest is not None
    return rest.start(), rest.start(), "".join(_newline(text) + " " * collection.start_mark.column + line for line in lines)


def _entry(text: str, node: Any, ranges: Ranges) -> str:
    if node.flow_style:
        return _flow(ranges)
    separator: str = _newline(text) + " " * node.start_mark.column
    return separator.join(f"{state}: {_texts(texts)}" for state, texts in ranges.items())


def _flow(ranges: Ranges) -> str:
    return "{" + ", ".join(f"{state}: {_texts(texts)}" for state, texts in ranges.items()) + "}"


def _texts(texts: Sequence[str]) -> str:
    quoted = [f'"{text}"' for text in texts]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"


def _plain(release: str) -> str:
    """A release as a YAML text: 5.24.0 as it is, 5.24 in quotes, since it would be a number."""
    return release if isinstance(yaml.safe_load(release), str) else f'"{release}"'


def _mapping(node: yaml.Node) -> dict[str, yaml.Node]:
    return {key.value: value for key, value in node.value}


def _span(node: Any) -> tuple[int, int]:
    return node.start_mark.index, _end(node)


def _end(node: Any) -> int:
    """Where a node's text ends. A block collection's own mark lies behind the comments that follow it, so its last leaf tells."""
    last = node[1] if isinstance(node, tuple) else node
    while isinstance(last, yaml.CollectionNode) and not last.flow_style and last.value:
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    end: int = last.end_mark.index
    return end


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
