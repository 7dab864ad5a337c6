"""Whether the provenance check holds for every function of real modeling files: each living one is found, none is called foreign.

What lives is found out here by other means than the engine's: by asking the garbage collector for every function whose globals
are the module's.
"""

from __future__ import annotations

import ast
import gc
import importlib
import types
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from patchwork import TargetMissing
from patchwork.engine.environment.installed import ModuleSource, read_source
from patchwork.engine.live import lookup
from patchwork.engine.live.pyc import code_on_disk
from patchwork.engine.locate import Function, decorators, definitions, functions, starts_at
from patchwork.engine.text import Source, compiled, decode

# Decoders, encoders, both, vision, speech, recurrent and hybrid ones; more than twenty, as no release has them all.
MODELS = (
    *("bamba", "bart", "bert", "clip", "deepseek_v3", "falcon_h1", "gemma3", "gpt_oss", "granitemoehybrid", "jamba", "lfm2"),
    *("llama", "mamba2", "mixtral", "modernbert", "qwen3_5", "qwen3_next", "siglip", "t5", "vit", "whisper", "zamba2"),
)
HERE = [name for name in MODELS if find_spec(f"transformers.models.{name}")]


@pytest.fixture(params=HERE)
def module(request: pytest.FixtureRequest) -> types.ModuleType:
    return importlib.import_module(f"transformers.models.{request.param}.modeling_{request.param}")


def parts_of(module: types.ModuleType) -> tuple[ModuleSource, Source]:
    assert module.__spec__ is not None
    source = read_source(module.__spec__)
    return source, Source(decode(source.data)[0])


def living(module: types.ModuleType) -> dict[str, list[types.FunctionType]]:
    """By qualified name, the functions of the module that are alive."""
    found = defaultdict(list)
    for item in gc.get_objects():
        if type(item) is types.FunctionType and item.__globals__ is vars(module):
            found[item.__qualname__].append(item)
    return found


def names_of(tree: ast.Module) -> Iterator[str]:
    """The names that a patch may give the functions of a module, parts of properties by their own."""
    parts = {"setter": ".fset", "deleter": ".fdel"}
    for name, function in functions(tree):
        kinds = [decorator.rpartition(".")[2] for decorator in decorators(function)]
        if "overload" not in kinds:
            yield name + next((parts[kind] for kind in kinds if kind in parts), "")


def defined(node: ast.AST) -> int:
    """How many functions stand in a module or its classes, counted without the engine."""
    count = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            count += not any("overload" in ast.unparse(item) for item in child.decorator_list)
        else:
            count += defined(child)
    return count


def test_there_are_twenty_modeling_files():
    assert len(HERE) >= 20


def test_every_function_of_a_modeling_file_is_found_to_be_the_one_of_its_source(module, record_property):
    source, text = parts_of(module)
    code = code_on_disk(source, text.tree)
    alive = living(module)
    asked = absent = 0
    for name in dict.fromkeys(names_of(text.tree)):
        found = definitions(text.tree, name)
        asked += len(found)
        codes = [lookup.code_of(code, name, starts_at(item)) for item in found]
        own = alive[name.removesuffix(".fset").removesuffix(".fdel")]
        if not own:  # under a condition that does not hold here
            absent += len(found)
            with pytest.raises(TargetMissing):
                lookup.find_live(module, name, codes, found[0])
            continue
        live = lookup.find_live(module, name, codes, found[0])
        assert live.function in own, name
        assert live.function.__code__.co_firstlineno == starts_at(found[live.index]), name
    assert asked == defined(text.tree) >= 15
    assert absent <= asked // 10, "most of a file is alive"
    record_property("functions", asked)


def test_the_code_of_the_pyc_the_bytes_and_the_tree_are_equal(module):
    source, text = parts_of(module)
    assert code_on_disk(source, text.tree) == compiled(source.data, source.path) == compiled(text.tree, source.path)
