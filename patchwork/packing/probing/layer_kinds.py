"""Finds the kinds of layers in a config, and the fewest layers that have each kind.

Families say it in many ways: a value for each layer, the numbers of some, all up to a number, every so many. The first
layers are kept, because then whatever says which is of which kind goes on to hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..models.config_fields import HEADS, LAYERS, WIDTH, holders, layers, overrides, said

_PER_LAYER = re.compile(r"layer|block|types?$|pattern")
_INDEXES = re.compile(r"layer|idxs$|indices$|indexes$|layer_ids$")
_UP_TO = re.compile(r"first_k_dense|dense_layers$|layer_index_(start|end)$")
_EVERY = re.compile(r"period$|interval$|sparse_step$|layer_(freq|step)$|layer_group_size$|layers_per|_pattern$")
_READING = "num_kv_shared_layers"  # so many of the last layers read keys and values of earlier ones
_SHARING = ("zamba", "zamba2")  # a hybrid layer shares the weights of an earlier one


def shrink_layers(config: Any) -> None:
    """Keeps the first layers, as many as it takes to have each kind of them, and at least two."""
    total = layers(config)
    kinds = kinds_of(config)
    times = 2 * getattr(config, "num_mem_blocks", 1) if getattr(config, "model_type", "") in _SHARING else 1

    def enough(number: int) -> bool:
        found = ((kind, kinds[:number].count(kind), times if "hybrid" in kind else 1) for kind in set(kinds))
        return all(count >= min(wanted, kinds.count(kind)) for kind, count, wanted in found)

    kept = next((number for number in range(min(2, total), total) if enough(number)), total)
    reading = said(config, _READING) or 0
    if 0 < reading < total:  # each kind of layer that writes is there; now each kind that reads
        rest = kinds[kept:]
        reading = next((number for number in range(1, len(rest)) if set(rest[:number]) == set(rest)), len(rest)) or reading
        kept = min(kept + reading, total)
    if kept == total:
        return
    if own := overrides(config):
        config.per_layer_config = None
    for fields, put in holders(config):
        indexes = {name: value for name, value in fields.items() if _is_index(name, value, total)}
        from_one = any(total in value for value in indexes.values())
        for name, value in fields.items():
            if name in indexes:
                put(name, [number for number in value if number < kept + from_one])
            elif _is_listed(name, value, total):
                put(name, value[:kept])
            elif type(value) is int and (
                (LAYERS.search(name) and value == total) or _UP_TO.search(name) or name == "max_window_layers"
            ):
                put(name, min(value, kept))
            elif name == _READING and value:
                put(name, min(reading, kept))
    if own:
        config.per_layer_config = {layer: fields for layer, fields in own.items() if layer < kept} or None


def kinds_of(config: Any) -> list[tuple[Any, ...]]:
    """What is said of each layer: layers of one kind say the same."""
    total = layers(config)
    signs: list[Callable[[int], Any]] = []
    for fields, _ in holders(config):
        for name, value in fields.items():
            signs += filter(None, [_sign(name, value, total, fields)])
    for name in dir(type(config)):
        if _PER_LAYER.search(name) and isinstance(getattr(type(config), name), property):
            signs += filter(None, [_sign(name, _property(config, name), total, {})])
    if own := overrides(config):  # of numbers only that they are other ones
        signs.append(lambda layer: str([(name, type(value) is int or value) for name, value in own.get(layer, {}).items()]))
    return [tuple(sign(layer) for sign in signs) for layer in range(total)]


def _sign(name: str, value: Any, total: int, fields: dict[str, Any]) -> Callable[[int], Any] | None:
    if _is_listed(name, value, total):
        return lambda layer: str(value[layer])
    if _is_index(name, value, total):
        return lambda layer: layer in value
    if type(value) is not int or value < 1:
        return None
    if _UP_TO.search(name):
        return lambda layer: layer < value
    if _EVERY.search(name) and value > 1:
        offset = fields.get(name.replace("period", "offset"))
        if type(offset) is int and offset != value:
            return lambda layer: layer % value == offset
        return lambda layer: (layer % value == 0, (layer + 1) % value == 0)
    return None


def _property(config: Any, name: str) -> Any:
    """What a config works out of its fields, None where it cannot be."""
    try:
        return getattr(config, name, None)
    except (RuntimeError, TypeError, ValueError):
        return None


def _is_listed(name: str, value: Any, total: int) -> bool:
    if isinstance(value, str):
        return len(value) == total and bool(re.search("pattern", name))
    if not isinstance(value, (list, tuple)) or len(value) != total:
        return False
    return bool(_PER_LAYER.search(name) or WIDTH.search(name) or HEADS.search(name)) and not _is_index(name, value, total)


def _is_index(name: str, value: Any, total: int) -> bool:
    """A list of some layers' numbers, each once and in order; not a list with a number for each layer."""
    return (
        isinstance(value, (list, tuple))
        and bool(_INDEXES.search(name))
        and all(type(number) is int and 0 <= number <= total for number in value)
        and sorted(set(value)) == list(value)
        and bool(value)
    )
