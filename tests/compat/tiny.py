"""Tiny models of real architectures, and references to hold them against: each document alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import families
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from patchwork.packing.probing.model_sources import config_of
from patchwork.packing.probing.tiny_models import shrink, tiny_model

VOCABULARY = 97
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}

# Name of the test model: its model class, its config class, its config.
RECURRENT = {
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", {**TEXT, **LINEAR, **EXPERTS}),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", {**TEXT, **LINEAR}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", {**TEXT, **LINEAR, **EXPERTS}),
    "qwen3_5_vlm": ("Qwen3_5ForConditionalGeneration", "Qwen3_5Config", {**TEXT, **LINEAR}),
}
ATTENTION = {"llama": "Llama", "qwen2_moe": "Qwen2Moe", "qwen3": "Qwen3"}


def recurrent_names() -> list[str]:
    """The recurrent test models that this release of transformers has."""
    return [name for name, (model, _, _) in RECURRENT.items() if hasattr(transformers, model)]


def build(name: str, attention: str = "sdpa", seed: int = 0, **changes: Any) -> torch.nn.Module:
    """A tiny model in training mode, float32, weights of standard deviation 0.1 so that a leak shows.

    Names that are in no table are model types: the family's own default config, shrunk, windows and chunks of 4 tokens.
    """
    torch.manual_seed(seed)
    if name not in (*RECURRENT, *ATTENTION, *families.names()):
        return _of_type(name, attention)
    if name not in RECURRENT and name in families.names():
        return families.build(name, attention)
    if name in RECURRENT:
        model_name, config_name, settings = RECURRENT[name]
    else:
        stem = ATTENTION[name]
        model_name, config_name, settings = f"{stem}ForCausalLM", f"{stem}Config", {**TEXT, **EXPERTS}
    settings = {**copy.deepcopy(settings), **changes}
    if name == "qwen3_5_vlm":
        ids = {f"{kind}_token_id": VOCABULARY - 4 + at for at, kind in enumerate(("vision_start", "image", "video"))}
        config = getattr(transformers, config_name)(text_config=settings, vision_config=dict(VISION), **ids)
    else:
        config = getattr(transformers, config_name)(**settings)
    config._attn_implementation = attention
    model = getattr(transformers, model_name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    # Dropout and the like would make two runs differ.
    return model.train()


def _of_type(name: str, attention: str) -> torch.nn.Module:
    model = tiny_model(shrink(config_of(name)))
    if attention != "sdpa":  # tiny_model's choice, where the family has it
        model.config._attn_implementation = attention
    return model.train()


def has(name: str) -> bool:
    """Whether the installed transformers has a test model of this name."""
    return name in ATTENTION or name in CONFIG_MAPPING


def documents(lengths: Sequence[int], seed: int = 1) -> list[torch.Tensor]:
    """Random token ids, one ``(1, length)`` tensor a document."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, VOCABULARY - 5, (1, length), generator=generator) for length in lengths]


def positions(lengths: Sequence[int]) -> torch.Tensor:
    """Positions that restart, ``(1, sum of lengths)``."""
    return torch.cat([torch.arange(length) for length in lengths])[None]


def logits_alone(model: torch.nn.Module, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Logits of each document in a row of its own."""
    return [logits(model, input_ids=part) for part in parts]


def logits(model: torch.nn.Module, **arguments: Any) -> torch.Tensor:
    return model(**arguments, use_cache=False).logits


def loss(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A scalar that weighs each logit of the documents after the first differently."""
    total = outputs[0].new_zeros(())
    for number, output in enumerate(outputs[1:]):
        generator = torch.Generator().manual_seed(number)
        total = total + (output * torch.randn(output.shape, generator=generator)).sum() / 10
    return total


def gradients(model: torch.nn.Module, run: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Parameter gradients of what ``run`` returns; zeros where a parameter, say of an expert, had no part in it."""
    model.zero_grad()
    with torch.enable_grad():
        run().backward()
    found = {
        name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
        for name, value in model.named_parameters()
        if value.requires_grad
    }
    model.zero_grad()
    return found


def worst_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Largest difference of a parameter's gradient, relative to the norm of its reference.

    A decay of norm 0.003 beside matrices of norm 10 is float noise, so norms count as at least 1e-3 of the whole.
    """
    assert ours.keys() == theirs.keys()
    whole = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
    return max(((ours[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-3 * whole)).item() for name in theirs)


def nudged(model: torch.nn.Module) -> torch.nn.Module:
    """A copy in which the last bit of each weight is moved, up or down at random.

    What that moves in a result is what rounding does to it on any processor: on 85 architectures, sums in another order moved
    logits by up to 1.4 times as much, and gradients by up to 2.2 times.
    """
    made = families.duplicate(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + signs * torch.finfo(parameter.dtype).eps)
    return made


def split(row: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """The documents' parts of ``(1, S, ...)``, a tail left out."""
    return list(row[:, : sum(lengths)].split(list(lengths), dim=1))
