"""The kernel for decoding."""

from __future__ import annotations

from fla.calls import calls
from fla.ops.recurrence import check_documents, check_heads, delta_rule


def fused_recurrent_gated_delta_rule(
    q,
    k,
    v,
    g=None,
    gk=None,
    gv=None,
    beta=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    A_log=None,
    dt_bias=None,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    state_v_first=False,
    cu_seqlens=None,
    **kwargs,
):
    """As ``chunk_gated_delta_rule``."""
    calls.append(("fused_recurrent_gated_delta_rule", cu_seqlens))
    given = (gk, gv, A_log, dt_bias)
    if use_gate_in_kernel or use_beta_sigmoid_in_kernel or allow_neg_eigval or state_v_first or any(x is not None for x in given):
        raise NotImplementedError("the double has none of the options that transformers does not use")
    g, beta = (v.new_zeros(v.shape[:3]) if g is None else g), (v.new_ones(v.shape[:3]) if beta is None else beta)
    check_heads(q, k, v, g, beta, tuple(v.shape[:3]))
    if cu_seqlens is not None:
        check_documents(cu_seqlens, q, v, initial_state)
    documents = cu_seqlens
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out, states = delta_rule(q, k, v, g[..., None], beta, scale, use_qk_l2norm_in_kernel, initial_state, documents)
    return out, states if output_final_state else None
