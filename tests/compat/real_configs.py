"""Configs of the sizes that published models have, by name: the model type, and what differs from its default."""

from __future__ import annotations

from typing import Any

LINEAR, FULL = "linear_attention", "full_attention"


def every(number: int, total: int, usual: str, other: str) -> list[str]:
    return [other if (layer + 1) % number == 0 else usual for layer in range(total)]


def among(total: int, usual: str, other: str, *layers: int) -> list[str]:
    return [other if layer in layers else usual for layer in range(total)]


def _rope(sections: tuple[int, ...]) -> dict[str, Any]:
    return {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": list(sections),
    }


def _heads(number: int, key_value: int, size: int = 0) -> dict[str, int]:
    return {"num_attention_heads": number, "num_key_value_heads": key_value, **({"head_dim": size} if size else {})}


REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next_80b": (
        "qwen3_next",
        {"hidden_size": 2048, "num_hidden_layers": 48, **_heads(16, 2, 256), "num_experts": 512, "num_experts_per_tok": 10}
        | {"vocab_size": 151936, "bos_token_id": 151643, "eos_token_id": 151645},
    ),
    "qwen3_5_9b": (
        "qwen3_5",
        {
            "text_config": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32, **_heads(16, 4, 256)}
            | {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "layer_types": every(4, 32, LINEAR, FULL)}
            | {"eos_token_id": 248044, "rope_parameters": _rope((11, 11, 10))},
            "vision_config": {"depth": 27, "hidden_size": 1152, "num_heads": 16, "out_hidden_size": 4096},
        },
    ),
    "qwen3_5_27b": (
        "qwen3_5",
        {
            "text_config": {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, **_heads(24, 4, 256)}
            | {"linear_num_key_heads": 16, "linear_num_value_heads": 48, "layer_types": every(4, 64, LINEAR, FULL)}
            | {"rope_parameters": _rope((11, 11, 10))},
        },
    ),
    "qwen3_5_moe_397b": (
        "qwen3_5_moe",
        {
            "text_config": {"hidden_size": 4096, "num_hidden_layers": 60, **_heads(32, 2, 256), "num_experts": 512}
            | {"linear_num_key_heads": 16, "linear_num_value_heads": 64, "layer_types": every(4, 60, LINEAR, FULL)}
            | {"num_experts_per_tok": 10, "rope_parameters": _rope((11, 11, 10))},
        },
    ),
    "qwen4_exp_ple": (
        "qwen4_exp",
        {
            "text_config": {"ple_layer_ids": [2, 6], "eos_token_id": 248046, "indexer_n_heads": 4, "indexer_kv_heads": 1}
            | {"indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 16}
            | {"rope_parameters": _rope((11, 11, 10))},
        },
    ),
    "falcon_h1_500m": (
        "falcon_h1",
        {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 36, **_heads(8, 2, 64), "vocab_size": 32784}
        | {"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_chunk_size": 128},
    ),
    "falcon_h1_34b": (
        "falcon_h1",
        {"hidden_size": 5120, "intermediate_size": 21504, "num_hidden_layers": 72, **_heads(20, 4, 128), "vocab_size": 261120}
        | {"mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_state": 256, "mamba_n_groups": 2},
    ),
    "nemotron_h_8b": (
        "nemotron_h",
        {"hidden_size": 4096, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"}
        | {**_heads(32, 8, 128), "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "intermediate_size": 21504},
    ),
    "nemotron_h_moe_30b": (
        "nemotron_h",
        {"hidden_size": 2688, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"}
        | {**_heads(32, 2, 128), "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "n_routed_experts": 128}
        | {"num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712},
    ),
    "jamba_52b": (
        "jamba",
        {"hidden_size": 4096, "num_hidden_layers": 32, **_heads(32, 8), "attn_layer_period": 8, "attn_layer_offset": 4}
        | {"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2, "mamba_dt_rank": 256},
    ),
    "bamba_9b": (
        "bamba",
        {"hidden_size": 4096, "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27], **_heads(32, 8), "vocab_size": 128256}
        | {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128},
    ),
    "zamba2_1b": (
        "zamba2",
        {"hidden_size": 2048, "num_hidden_layers": 38, "num_mem_blocks": 1, **_heads(32, 32), "use_mem_rope": True}
        | {"n_mamba_heads": 64, "mamba_headdim": 64, "mamba_ngroups": 1, "intermediate_size": 8192}
        | {"use_shared_attention_adapter": True, "layers_block_type": every(6, 38, "mamba", "hybrid")},
    ),
    "granite_4_tiny": (
        "granitemoehybrid",
        {"hidden_size": 1536, "num_hidden_layers": 40, "layer_types": among(40, "mamba", "attention", 5, 15, 25, 35)}
        | {**_heads(12, 4), "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
        | {"num_local_experts": 64, "num_experts_per_tok": 6, "intermediate_size": 512, "shared_intermediate_size": 1024}
        | {"position_embedding_type": "nope", "vocab_size": 100352, "pad_token_id": 100256, "eos_token_id": 100257},
    ),
    "lfm2_1b": (
        "lfm2",
        {"hidden_size": 2048, "num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14], **_heads(32, 8)},
    ),
    "lfm2_moe_8b": (
        "lfm2_moe",
        {"hidden_size": 2048, "num_hidden_layers": 24, "layer_types": among(24, "conv", FULL, 2, 6, 10, 14, 18, 21)}
        | {"num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4},
    ),
    "minimax_456b": (
        "minimax",
        {"hidden_size": 6144, "num_hidden_layers": 80, "layer_types": every(8, 80, LINEAR, FULL), **_heads(64, 8, 128)}
        | {"num_local_experts": 32, "num_experts_per_tok": 2, "intermediate_size": 9216, "vocab_size": 200064},
    ),
    "mamba2_3b": (
        "mamba2",
        {"hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64, "n_groups": 1, "vocab_size": 50288},
    ),
    "falcon_mamba_7b": ("falcon_mamba", {"hidden_size": 4096, "num_hidden_layers": 64, "vocab_size": 65024, "eos_token_id": 11}),
    "recurrent_gemma_9b": (
        "recurrent_gemma",
        {"hidden_size": 4096, "num_hidden_layers": 38, **_heads(16, 1), "lru_width": 4096, "intermediate_size": 24576},
    ),
    "rwkv_169m": (
        "rwkv",
        {"hidden_size": 768, "num_hidden_layers": 12, "attention_hidden_size": 768, "intermediate_size": 3072},
    ),
    "llama_135m": (
        "llama",
        {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, **_heads(9, 3), "vocab_size": 49152},
    ),
    "qwen2_500m": ("qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, **_heads(14, 2)}),
    "deepseek_v3": ("deepseek_v3", {}),
    "gpt_oss": ("gpt_oss", {}),
    "gpt2": ("gpt2", {}),
}

# The families that keep state along the row, and those of attention only, by model type.
RECURRENT = (
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid", "lara_mini"),
    *("kimi_linear", "bailing_hybrid", "glm5_next", "minimax"),
    *("mamba", "falcon_mamba", "mamba2", "bamba", "jamba", "zamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid"),
    *("lfm2", "lfm2_moe", "lfm3", "inkling_mm_model", "inkling2", "inkling2_loop"),
    *("recurrent_gemma", "rwkv", "xlstm", "zaya"),
)
ATTENTION = (
    *("cohere", "gemma", "gemma2", "glm4", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "phi3", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "starcoder2"),
    *("dots1", "dots3_note_text", "ernie4_5_moe", "gemma3n_text", "gemma4_text", "hunyuan_v1_dense", "nemotron"),
)
