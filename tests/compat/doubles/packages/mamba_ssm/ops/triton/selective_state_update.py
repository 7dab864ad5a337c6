"""The step of decoding."""

from __future__ import annotations


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    """One step of decoding."""
    raise NotImplementedError("the double does not decode")
