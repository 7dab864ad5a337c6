"""A tiny model of every recurrent family that the installed transformers has, shrunk from the family's own default config."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from patchwork.packing.models.families import FAMILIES, released
from patchwork.packing.probing.model_sources import MIXED
from patchwork.packing.probing.tiny_models import shrink, tiny_model

# Model types that are not called like the folder.
TYPES = {
    "inkling": "inkling_text",
    "inkling2": "inkling2_text",
    "inkling2_loop": "inkling2_loop_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen4_exp": "qwen4_exp_text",
}
# Where a default config has one kind of layer only, leaves parts out, or builds a model that upstream cannot run.
SETTINGS: dict[str, dict[str, Any]] = {
    **MIXED,
    "inkling2_loop": {  # its own loop takes 12 layers three times
        "num_hidden_layers": 6,
        "layer_types": ["hybrid_sliding", "hybrid"] * 3,
        "n_layers_per_attn_res_block": 2,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
    },
    "qwen4_exp": {"ple_layer_ids": [1], "eos_token_id": 2},
    "zamba2": {"use_mem_rope": True},
}


def names() -> list[str]:
    """The recurrent families that the installed transformers has."""
    return [family.name for family in FAMILIES if family.recurrent and TYPES.get(family.name, family.name) in CONFIG_MAPPING]


@functools.cache
def config(name: str) -> Any:
    """The family's default config, small."""
    return shrink(CONFIG_MAPPING[TYPES.get(name, name)](**SETTINGS.get(name, {})))


def build(name: str, attention: str = "sdpa") -> torch.nn.Module:
    """A tiny model in training mode, float32, weights of standard deviation 0.1 so that a leak shows."""
    settings = copy.deepcopy(config(name))
    if attention != "sdpa":  # tiny_model's choice, where the family has it
        settings._attn_implementation = attention
    model = tiny_model(settings)
    if name == "recurrent_gemma" and not released("5.0"):
        # Without a cache, too, it goes on from the state of the call before, and from its graph.
        model.register_forward_pre_hook(_forget_unless_cached, with_kwargs=True)
    return model.train()


def duplicate(model: torch.nn.Module) -> torch.nn.Module:
    """A deep copy. RecurrentGemma keeps states with their graph, which cannot be copied."""
    _forget(model)
    return copy.deepcopy(model)


def _forget(model: torch.nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "recurrent_states"):
            module.recurrent_states = None


def _forget_unless_cached(model: torch.nn.Module, _: Any, arguments: dict[str, Any]) -> None:
    if not arguments.get("use_cache"):
        _forget(model)
