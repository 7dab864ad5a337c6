"""The kernel for training, under the two decorators of the real one."""

from __future__ import annotations

import torch

from fla.backends import dispatch
from fla.calls import calls
from fla.ops.recurrence import check_documents, check_heads, delta_rule


@torch.compiler.disable
@dispatch("gated_delta_rule")
def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    cp_context=None,
    **kwargs,
):
    """q, k (B, T, H, K), v (B, T, HV, V), g (log space) and beta (B, T, HV), cu_seqlens (N + 1,); returns outputs and states."""
    calls.append(("chunk_gated_delta_rule", cu_seqlens))
    if use_beta_sigmoid_in_kernel or allow_neg_eigval or state_v_first or cp_context or kwargs.get("use_gate_in_kernel"):
        raise NotImplementedError("the double has none of the options that transformers does not use")
    check_heads(q, k, v, g, beta, tuple(v.shape[:3]))
    if cu_seqlens is not None:
        check_documents(cu_seqlens, q, v, initial_state)
    documents = cu_seqlens
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out, states = delta_rule(q, k, v, g[..., None], beta, scale, use_qk_l2norm_in_kernel, initial_state, documents)
    return out, states if output_final_state else None
