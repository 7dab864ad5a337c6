"""Tiny models whose mixers call kernels, and which ones they call."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
import transformers
from packaging.version import Version

SMALL = {
    "vocab_size": tiny.VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA = {"state_size": 8, "time_step_rank": 8}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 16}
# Its fusion gates before the norm whatever the config says.
BEFORE = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
JAMBA = {"mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False, "num_experts": 2, "num_hidden_layers": 4}
EVERY_THIRD = {"num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 2}
# One chunk: to 5.14 the torch path of Zamba 2 and Nemotron-H sums over the wrong axis where there are more.
MEMORY = {"use_mem_eff_path": True, "use_mem_rope": True, "mamba_ngroups": 1, "chunk_size": 128}
KIMI = {
    **{"linear_num_heads": 4, "linear_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    **{"num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8},
    **{"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
RULE = ("causal_conv1d_fn", "chunk_gated_delta_rule")
# From 5.15 each kernel is found by itself; before, Mamba uses all or none, and the convolutions of OLMo are modules of torch.
EVERY_KERNEL_ALONE = Version(transformers.__version__) >= Version("5.15")
OLMO = RULE if EVERY_KERNEL_ALONE else RULE[1:]
FUSED, STEPS = ("mamba_split_conv1d_scan_combined",), ("causal_conv1d_fn", "mamba_chunk_scan_combined")
INNER, OUTER = ("mamba_inner_fn",), ("causal_conv1d_fn", "selective_scan_fn")
CONV = ("causal_conv1d_fn",)
# Model class, settings beside SMALL, kernels that run in training, kernels that run in evaluation.
MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "qwen3_next": ("Qwen3NextForCausalLM", {**tiny.LINEAR, **tiny.EXPERTS, "num_hidden_layers": 4, "head_dim": 16}, RULE, RULE),
    "qwen3_5": ("Qwen3_5ForCausalLM", {**tiny.LINEAR, "num_hidden_layers": 4, "head_dim": 16}, RULE, RULE),
    "mamba": ("MambaForCausalLM", MAMBA, INNER, OUTER),
    "falcon_mamba": ("FalconMambaForCausalLM", MAMBA, INNER, OUTER),
    "mamba2": (
        "Mamba2ForCausalLM",
        {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 16},
        FUSED,
        STEPS,
    ),
    "bamba": ("BambaForCausalLM", {**HEADS, "attn_layer_indices": [1]}, FUSED, STEPS),
    "falcon_h1": ("FalconH1ForCausalLM", {**HEADS, "mamba_d_ssm": 64, **BEFORE}, FUSED, STEPS),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", {**HEADS, "layer_types": ["mamba", "attention"]}, FUSED, STEPS),
    "zamba2": (
        "Zamba2ForCausalLM",
        {"layers_block_type": ["mamba", "hybrid"], **MEMORY, "n_mamba_heads": 8, "mamba_d_state": 8},
        FUSED,
        STEPS,
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 128, "head_dim": 8},
        FUSED,
        STEPS,
    ),
    "jamba": ("JambaForCausalLM", JAMBA, OUTER, OUTER),
    "zamba": (
        "ZambaForCausalLM",
        {**EVERY_THIRD, "n_mamba_heads": 2, "mamba_d_state": 8, "mamba_dt_rank": 8, "use_mamba_kernels": False},
        OUTER,
        OUTER,
    ),
    "kimi_linear": ("KimiLinearForCausalLM", KIMI, ("causal_conv1d_fn", "chunk_kda"), ("causal_conv1d_fn", "chunk_kda")),
    "olmo_hybrid": ("OlmoHybridForCausalLM", {"num_hidden_layers": 4}, OLMO, OLMO),
    "lfm2_moe": (
        "Lfm2MoeForCausalLM",
        {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "num_experts": 4},
        CONV,
        CONV,
    ),
    "lfm2": ("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}, CONV, CONV),
}


def build(name: str) -> torch.nn.Module:
    model, settings, *_ = MODELS[name]
    if not hasattr(transformers, model):
        pytest.skip("not in this release of transformers")
    config = getattr(transformers, model).config_class(**{**SMALL, **settings})
    torch.manual_seed(0)
    built = getattr(transformers, model)(config)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1)
    for part in built.modules():
        if hasattr(part, "time_step_min"):  # below which only the path of torch does not go, until 5.14
            part.time_step_min = 0.0
    return built.train()
