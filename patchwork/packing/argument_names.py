"""The names of arguments by which a call describes its documents, or passes a cache. Imports nothing."""

from __future__ import annotations

CUMULATIVE = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens")
EXPLICIT = ("seq_idx", *CUMULATIVE, "packed_seq_lengths")
LIMITS = ("max_length_q", "max_length_k")
BOUNDARIES = (*EXPLICIT, *LIMITS)
CACHES = ("cache", "past_key_values", "past_key_value", "cache_params", "state")
