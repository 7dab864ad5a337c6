"""Finds the config or model behind a name of the command line or of `probe`."""

from __future__ import annotations

import copy
import os
from difflib import get_close_matches
from typing import Any

from ..errors import ProbeError
from .tiny_models import model_class, raised, reason

_MUSIC = {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"}, "decoder": {"num_codebooks": 1}}
# Of these the default has one kind of layer, real models have both; or it leaves out what real ones have and the code needs.
MIXED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "num_hidden_layers": 4,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}, "full_attention": None},
    },
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 8}},
    "glm4_moe": {"head_dim": 128},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "lfm2": {"full_attn_idxs": [2]},
    "mllama": {"text_config": {"rope_scaling": {"rope_type": "default"}}},
    **dict.fromkeys(("musicgen", "musicgen_melody"), _MUSIC),
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
}


_REASONS = (OSError, ValueError, KeyError, ImportError)


def config_of(name: str | os.PathLike[str], trust_remote_code: bool = False) -> Any:
    """The config of a name on the hub, of a folder, or the default one of a model type such as "qwen3_5".

    Raises ProbeError where there is none.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    name = str(name)
    if _is_type(name):
        try:
            return CONFIG_MAPPING[name](**copy.deepcopy(MIXED.get(name, {})))
        except raised() as error:
            raise ProbeError(f"{name} has no default config ({reason(error)}): give one, or a model") from error
    if not os.path.exists(name) and "/" not in name and (near := get_close_matches(name, CONFIG_MAPPING, n=3, cutoff=0.7)):
        raise ProbeError(f"{name} is neither a folder nor a model type of this transformers; near: {', '.join(near)}")
    reasons: tuple[type[Exception], ...] = (*_REASONS, *raised())
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except reasons as error:
        raise ProbeError(
            f"{name}: no config found ({reason(error)}). Give a name on the hub, a folder with a config.json, or a model "
            "type that transformers knows, such as qwen3_5"
        ) from error


def load(name: str, trust_remote_code: bool = False) -> Any:
    """A model with its own weights, in float32. Raises ProbeError where there are none."""
    import torch

    if _is_type(name):
        raise ProbeError(f"{name} is a model type, which has no weights: give a name on the hub or a folder, or no --full-size")
    kind, _ = model_class(config_of(name, trust_remote_code))
    given = {"trust_remote_code": True} if trust_remote_code else {}
    try:
        return kind.from_pretrained(name, dtype=torch.float32, **given)
    except _REASONS as error:
        raise ProbeError(f"{name}: no weights found ({reason(error)}); without --full-size a config is enough") from error


def _is_type(name: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return name in CONFIG_MAPPING and not os.path.exists(name)
