"""The kernel for decoding."""

from __future__ import annotations


def fused_recurrent_kda(
    q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False, **kwargs
):
    """One step of decoding."""
    raise NotImplementedError("the double does not decode with this one")
