"""What users call: a causal convolution for each channel."""

from __future__ import annotations

from causal_conv1d.calls import calls
from causal_conv1d.cpp_functions import causal_conv1d_fwd_function


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    """x (B, D, L), weight (D, width), bias (D,), seq_idx (B, L) int32; returns (B, D, L)."""
    calls.append(("causal_conv1d_fn", seq_idx))
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"no activation {activation!r}: only silu, swish, or None")
    if seq_idx is not None:
        assert initial_states is None, "initial states cannot be given together with documents"
        assert not return_final_states, "final states cannot be returned where there are documents"
    if initial_states is not None or return_final_states or final_states_out is not None:
        raise NotImplementedError("the double keeps no states")
    return causal_conv1d_fwd_function(x, weight, bias, seq_idx, None, None, activation is not None)


def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """One step of decoding."""
    raise NotImplementedError("the double does not decode")
