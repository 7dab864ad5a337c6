"""Reads transformers configs, which have many names for one field.

Configs of different families say the same under many names. What a name means is decided here, once, by its form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

LAYERS = re.compile(r"^(num_hidden_layers|num_layers|n_layers?|num_blocks|depth|(en|de)coder_layers)$")
HEADS = re.compile(r"(^|_)heads$|^n_head(_kv)?$|(^|_)n_?groups$|^num_query_groups$")
PER_HEAD = re.compile(r"head_dim$|d_head$|headdim$|head_size$|^kv_channels$|^d_kv$|^rotary_dim$|^d_rel$")
RANK = re.compile(r"rank$")
WIDTH = re.compile(
    r"hidden_(size|dim)$|intermediate_(size|dim)$|emb(ed(ding)?)?_dim$|^(d_model|n_embd|n_inner|d_ff|lru_width)$|"
    r"ffn_(dim|hidden_size)$|d_ssm$|d_inner$|mlp_dim$|^projection_dim$|embed_proj_dim$|embedding_size$|^dim_ff$|^dff$|"
    r"^feed_forward_size$|^intermediate_size_mlp$|^hidden_size_(per_layer_input|global)$"
)
WIDTH_OF_TEXT = re.compile(r"^(out_hidden_size|text_hidden_size|llm_hidden_size)$")
WIDTH_OF_PART = re.compile(r"^hidden_size_(global)$")  # of one that the whole config holds
TOKEN = re.compile(r"token_(id|ids|index)$|^(pad|bos|eos|sep|image|video|audio)_id$")
DROPOUT = re.compile(r"dropout|drop_rate|drop_path|pdrop|jitter")

# The names that a config has its own sizes under.
_HEADS = ("num_attention_heads", "num_heads", "n_head")
_WIDTH = ("hidden_size", "n_embd", "d_model", "embed_dim")
_LAYERS = ("num_hidden_layers", "depth", "num_layers", "n_layers", "n_layer")


def parts(config: Any) -> Iterator[Any]:
    """A config and those that it holds."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def text_part(config: Any) -> Any:
    """The config of the language model: one that a config holds, or itself. Of a text encoder and a decoder, the decoder."""
    if not hasattr(config, "get_text_config"):
        return config
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def overrides(config: Any) -> dict[int, dict[str, Any]]:
    """What single layers have of their own, by their number."""
    if not getattr(config, "is_heterogeneous", False):
        return {}
    return {int(layer): dict(fields) for layer, fields in config.to_dict()["per_layer_config"].items()}


def said(config: Any, name: str) -> Any:
    """The value of a field, None where there is none. Where layers have their own, the one that the others have: a config
    does not give it away by its name."""
    name = getattr(config, "attribute_map", {}).get(name, name)
    return vars(config)[name] if name in vars(config) else getattr(config, name, None)


def holders(config: Any) -> Iterator[tuple[dict[str, Any], Callable[[str, Any], None]]]:
    """Fields and what sets them: those of the config, those of plain mappings in it, as remote code has them, and those
    of single layers."""
    own = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    yield own, lambda name, value: setattr(config, name, value)
    for name, value in own.items():
        if isinstance(value, dict) and "rope" not in name and all(isinstance(key, str) for key in value):
            yield dict(value), value.__setitem__
    layers_own = overrides(config)
    for layer, fields in layers_own.items():
        yield dict(fields), partial(_put_override, config, layers_own, layer)


def _put_override(config: Any, layers_own: dict[int, dict[str, Any]], layer: int, name: str, value: Any) -> None:
    layers_own[layer][name] = value
    config.per_layer_config = layers_own


def numbers(config: Any, pattern: re.Pattern[str]) -> list[int]:
    """The numbers above 0 in fields of such names, lists with one for each layer included."""
    found: list[int] = []
    for fields, _ in holders(config):
        for name, value in fields.items():
            if pattern.search(name):
                listed = value if isinstance(value, (list, tuple)) else [value]
                found += [number for number in listed if type(number) is int and number > 0]
    return found


def layers(config: Any) -> int:
    """The number of layers, 0 where a config only holds others."""
    return _own(config, _LAYERS)


def width(config: Any) -> int:
    """The hidden size, 0 where a config only holds others."""
    return _own(config, _WIDTH)


def heads(config: Any) -> int:
    """The number of attention heads, else 0."""
    return _own(config, _HEADS)


def _own(config: Any, names: tuple[str, ...]) -> int:
    return next((size for name in names if type(size := said(config, name)) is int), 0)


def token_ids(config: Any) -> set[int]:
    """The ids of tokens that mean something to the model, in a config and those that it holds."""
    found: set[int] = set()
    for fields, _ in (holder for part in parts(config) for holder in holders(part)):
        for name, value in fields.items():
            if TOKEN.search(name):
                found |= {number for number in (value if isinstance(value, (list, tuple)) else [value]) if type(number) is int}
    return found


def ropes(config: Any) -> Iterator[dict[str, Any]]:
    """What is said of rotary positions."""
    yield {name: said(config, name) for name in ("partial_rotary_factor", "rotary_pct")}
    for name, value in vars(config).items():
        if "rope" in name and isinstance(value, dict):
            yield value
            yield from (inner for inner in value.values() if isinstance(inner, dict))
