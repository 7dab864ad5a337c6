"""Which code a source file holds: its .pyc where that is surely of this source, else what it compiles to, and both are equal."""

from __future__ import annotations

import argparse
import ast
import calendar
import configparser
import contextlib
import csv
import difflib
import fractions
import importlib.util
import inspect
import os
import py_compile
import queue
import shlex
import string
import tarfile
import textwrap
import tokenize
import types
import uuid
import zipfile
from pathlib import Path

import pytest

import patchwork
from patchwork import SourceMismatch, required
from patchwork.engine.environment.installed import ModuleSource, read_source, spec_of
from patchwork.engine.live import lookup
from patchwork.engine.live.pyc import code_on_disk
from patchwork.engine.locate import definitions, functions, starts_at
from patchwork.engine.text import Source, compiled, decode

LONG_AGO = 1_600_000_000


@pytest.fixture
def source(lib) -> ModuleSource:
    """A module written long ago, with its .pyc."""
    lib.write("def f():\n    return 1\n")
    return with_pyc(lib.path)


def with_pyc(path: Path, mode: py_compile.PycInvalidationMode = py_compile.PycInvalidationMode.TIMESTAMP) -> ModuleSource:
    os.utime(path, (LONG_AGO, LONG_AGO))
    py_compile.compile(str(path), doraise=True, invalidation_mode=mode)
    source = read_source(spec_of("lib.core"))
    assert Path(source.cached).exists()
    return source


def lookup_code(source: ModuleSource) -> None:
    """Put other code into the .pyc, under its header: whoever reads it shows that."""
    path = Path(source.cached)
    other = path.with_name("other.py")
    other.write_text("def f():\n    return 2\n")
    py_compile.compile(str(other), cfile=str(other) + "c", doraise=True)
    path.write_bytes(path.read_bytes()[:16] + Path(str(other) + "c").read_bytes()[16:])


def value(source: ModuleSource) -> object:
    space: dict[str, object] = {}
    exec(code_on_disk(source, ast.parse(source.data)), space)
    return space["f"]()  # type: ignore[operator]


def test_the_pyc_of_a_source_is_read(source):
    lookup_code(source)
    assert value(source) == 2


@pytest.mark.parametrize("checked", ["CHECKED_HASH", "UNCHECKED_HASH"])
def test_a_pyc_with_the_hash_of_the_source_is_read_and_one_of_another_source_is_not(lib, checked):
    lib.write("def f():\n    return 1\n")
    source = with_pyc(lib.path, py_compile.PycInvalidationMode[checked])
    lookup_code(source)
    assert value(source) == 2
    lib.path.write_text("def f():\n    return 3\n")
    assert value(read_source(spec_of("lib.core"))) == 3


def test_a_pyc_written_in_the_second_of_the_source_is_not_trusted(lib):
    lib.write("def f():\n    return 1\n")
    py_compile.compile(str(lib.path), doraise=True)
    when = lib.path.stat().st_mtime
    lib.path.write_text("def f():\n    return 3\n")  # of the same size
    os.utime(lib.path, (when, when))
    assert value(read_source(spec_of("lib.core"))) == 3


@pytest.mark.parametrize("seconds", [-60, 60])
def test_a_pyc_of_an_older_or_newer_source_is_not_used(source, seconds):
    lookup_code(source)
    os.utime(source.path, (LONG_AGO + seconds, LONG_AGO + seconds))
    assert value(source) == 1


def test_a_pyc_of_a_source_of_another_size_is_not_used(source):
    lookup_code(source)
    Path(source.path).write_bytes(source.data + b"\n")
    os.utime(source.path, (LONG_AGO, LONG_AGO))
    assert value(read_source(spec_of("lib.core"))) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[:16],
        lambda data: data[:-20],
        lambda data: data[:16] + b"N",  # None is no code
        lambda data: data[:16] + b"\xff" * 40,
        lambda data: b"\0\0\r\n" + data[4:],  # of another Python
    ],
)
def test_a_damaged_pyc_is_a_miss(source, damage):
    path = Path(source.cached)
    path.write_bytes(damage(path.read_bytes()))
    assert value(source) == 1


def test_no_pyc_is_a_miss(source):
    Path(source.cached).unlink()
    assert value(source) == 1


def test_a_loader_that_may_rewrite_the_source_has_its_pyc_left_alone(lib):
    lib.write("def f():\n    return 1\n")
    loader = type("Rewriting", (importlib.machinery.SourceFileLoader,), {})("lib.core", str(lib.path))
    spec = importlib.util.spec_from_file_location("lib.core", lib.path, loader=loader)
    assert read_source(spec).cached == ""


def test_a_file_changed_after_its_import_is_found_out_although_its_old_pyc_is_there(lib, source):
    module = lib.load()
    lib.path.write_text("def f():\n    return 7\n")
    with pytest.raises(SourceMismatch, match="f does not run the code that its file holds"):
        patchwork.apply(lib.patch("f", required("return 7").replace("return 8")))
    assert module.f() == 1


STANDARD = (
    *(argparse, ast, calendar, configparser, contextlib, csv, difflib, fractions, inspect),
    *(queue, shlex, string, tarfile, textwrap, tokenize, uuid, zipfile),
)


@pytest.mark.parametrize("module", STANDARD, ids=lambda module: module.__name__)
def test_the_tree_and_the_bytes_compile_to_equal_code(module: types.ModuleType):
    source = read_source(module.__spec__)
    tree = Source(decode(source.data)[0]).tree
    assert code_on_disk(source, tree) == compiled(tree, source.path) == compiled(source.data, source.path)


def plain(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """By qualified name, the functions and methods of a module that nothing wraps."""
    owners = [module, *(item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__)]
    named = [(name, item) for owner in owners for name, item in vars(owner).items() if type(item) is types.FunctionType]
    return {item.__qualname__: item for name, item in named if item.__globals__ is vars(module) and item.__name__ == name}


@pytest.mark.parametrize("module", STANDARD, ids=lambda module: module.__name__)
def test_the_functions_of_standard_modules_are_those_of_their_source(module: types.ModuleType):
    source = read_source(module.__spec__)
    tree = Source(decode(source.data)[0]).tree
    code = code_on_disk(source, tree)
    own = plain(module)
    asked = [name for name in dict.fromkeys(name for name, _ in functions(tree)) if name in own]
    assert len(asked) >= 5
    for name in asked:
        meant = definitions(tree, name)
        live = lookup.find_live(module, name, [lookup.code_of(code, name, starts_at(item)) for item in meant], meant[0])
        assert live.function is own[name]
