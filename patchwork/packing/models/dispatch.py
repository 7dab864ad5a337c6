"""Attention that is looked up in transformers' registry: which classes do so, and under which name."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

from .families import written

REGISTRY = "ALL_ATTENTION_FUNCTIONS"
FLEX = "flex_attention"
# TRL's attention over trees of prompts and their completions. It has its own arguments for who sees whom, and the positions of
# a branch go on from its stem: they restart, and no document begins there.
TREES = "tree_fa3"


def implementation_of(module: Any) -> str:
    """The name under which a model or its attention looks its attention function up."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager")


def flash(implementation: str) -> bool:
    """Whether attention of that name is a varlen kernel, which takes cumulative lengths."""
    return "flash" in implementation


def dispatches(kind: Any) -> bool:
    """Whether the forward of a class looks its attention function up in transformers' registry, for attention along the row."""
    return not across_layers(kind) and any(REGISTRY in names for names in names_used(kind))


def across_layers(kind: type) -> bool:
    """Whether attention of a class is over what layers left of each token."""
    return kind.__name__.endswith("AttentionResidual")


@functools.cache
def names_used(kind: Any) -> tuple[frozenset[str], ...]:
    """The global names that each method of a class uses, those of its bases too but for what all models have."""
    functions = [
        written(member)
        for base in kind.__mro__
        if not re.match(r"torch\.|builtins$|transformers\.(?!models\.)", base.__module__)
        for member in vars(base).values()
        if inspect.isfunction(member)
    ]
    return tuple(frozenset(function.__code__.co_names) for function in functions if inspect.isfunction(function))
