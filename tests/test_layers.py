"""The layers of the packages: no circle of imports, and none against the order below.

Every import counts: those inside functions, those for type checkers alone, and those in the code that patches put into functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# From the ground up. A module may import those of its own layer and of the layers below. A name stands for a module, or for a
# folder with all in it; the longest name that fits a module counts.
ENGINE = (
    ("holes",),
    ("errors",),
    ("validation", "report", "environment"),
    ("patch",),
    # What matches and rewrites.
    (
        *("text", "pattern", "locate", "scopes", "narrowing", "nearest", "difference", "reshape", "substitution", "filling"),
        *("splicing", "standing", "accounting", "templates", "rebinding", "ordering", "locating", "verdicts", "rewriting"),
    ),
    ("live",),
    ("module_plan", "applicability", "cases"),
    ("transaction", "preview"),
)
PACKING = (
    ("argument_names", "errors", "settings"),
    ("boundaries",),
    ("models",),
    ("runtime",),
    ("isolation",),
    ("decision",),
    ("trainers", "probing"),
    ("hooks",),
    ("",),  # the public names
)
ABOVE = (
    ("selection",),
    ("releases",),
    ("api",),
    ("workers",),
    ("",),  # the public names
    ("commands",),
    ("cli",),
)
# What patches and the code that they put into functions may import.
FOR_PATCHES = ("patchwork",)
FOR_PATCHED_CODE = ("patchwork.packing.hooks", "patchwork.workers")

Import = tuple[str, str]


def _sources() -> dict[str, Path]:
    """By name, the modules of the distribution."""
    found = {}
    for folder in ("patchwork", "patches"):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = ("patchwork", *parts) if folder == "patches" else parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = _sources()


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules of the distribution that a tree imports, in a module of this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "patchwork")
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] == "patchwork":
                yield from (name if (name := f"{base}.{alias.name}") in SOURCES else base for alias in node.names)


def _in_text(tree: ast.AST) -> Iterator[str]:
    """The modules of the distribution that code in the strings of a tree imports; a string may be a part of an f-string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\b(?:from|import) (patchwork[\w.]*)", node.value)


def _package(name: str) -> str:
    return name if SOURCES[name].name == "__init__.py" else name.rpartition(".")[0]


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}
IMPORTS = {name: set(_imported(tree, _package(name))) - {name} for name, tree in TREES.items()}
# Of patches and of the packages above: text in the engine and in packing is of errors.
IN_TEXT = {name: set(_in_text(tree)) for name, tree in TREES.items() if name.startswith("patchwork.patches")}


def _ranks() -> dict[str, tuple[str, int]]:
    """By prefix, the name of a stack of layers, and the layer in it."""
    stacks = {"patchwork.engine.": ENGINE, "patchwork.packing.": PACKING, "patchwork.": ABOVE}
    return {
        f"{stack}{name}".rstrip("."): (stack, rank)
        for stack, layers in stacks.items()
        for rank, layer in enumerate(layers)
        for name in layer
    }


RANKS = _ranks()


def _rank(name: str) -> tuple[str, int] | None:
    if name in RANKS:
        return RANKS[name]
    above = (name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1))
    return next((RANKS[folder] for folder in above if folder in RANKS and folder not in ("patchwork", "patchwork.packing")), None)


def _allowed(importer: str, imported: str) -> bool:
    if importer.startswith("patchwork.patches"):
        return imported in FOR_PATCHES or imported.startswith("patchwork.patches.")
    if imported.startswith("patchwork.patches"):
        return False  # it is found by its name, as the packs of others are
    mine, its = _rank(importer), _rank(imported)
    if mine is None or its is None:
        return False
    return mine[1] >= its[1] if mine[0] == its[0] else mine[0] == "patchwork."


def breaches() -> set[Import]:
    """The imports that the layers do not allow."""
    found = {(name, other) for name, others in IMPORTS.items() for other in others if not _allowed(name, other)}
    return found | {(name, other) for name, others in IN_TEXT.items() for other in others if other not in FOR_PATCHED_CODE}


def _circles() -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""
    reached = {name: _reached_from(name) for name in IMPORTS}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in IMPORTS if name in reached[name]}
    return sorted(sorted(group) for group in groups)


def _reached_from(name: str) -> set[str]:
    found: set[str] = set()
    ahead = list(IMPORTS[name])
    while ahead:
        if (other := ahead.pop()) not in found and other in IMPORTS:
            found.add(other)
            ahead += IMPORTS[other]
    return found


def test_no_import_goes_against_the_order() -> None:
    assert breaches() == set()


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert _circles() == []


def test_each_module_has_a_layer() -> None:
    missing = [name for name in SOURCES if not name.startswith("patchwork.patches") and _rank(name) is None]
    assert missing == ["patchwork.engine"]  # a docstring alone
