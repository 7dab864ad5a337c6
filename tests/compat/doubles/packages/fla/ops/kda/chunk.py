"""The kernel for training, under the two decorators of the real one."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fla.backends import dispatch
from fla.calls import calls
from fla.ops.recurrence import check_documents, check_heads, delta_rule


@torch.compiler.disable
@dispatch
def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    lower_bound=None,
    disable_recompute=False,
    return_intermediate_states=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    cp_context=None,
    use_graph=False,
    max_num_seqs=None,
    **kwargs,
):
    """q, k (B, T, H, K), v (B, T, HV, V), g (B, T, HV, K), beta (B, T, HV), cu_seqlens (N + 1,); returns outputs and states.

    With ``use_gate_in_kernel`` g is what goes into the gate, and A_log (HV,), dt_bias (HV * K,) are its parameters.
    """
    calls.append(("chunk_kda", cu_seqlens))
    if allow_neg_eigval or safe_gate or return_intermediate_states or state_v_first or cp_context or use_graph:
        raise NotImplementedError("the double has none of the options that transformers does not use")
    check_heads(q, k, v, g, beta, (*v.shape[:3], k.shape[-1]))
    if cu_seqlens is not None:
        check_documents(cu_seqlens, q, v, initial_state)
    documents = cu_seqlens
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    if use_gate_in_kernel:
        g = _gate(g.float(), kwargs.get("A_log"), kwargs.get("dt_bias"), lower_bound)
    if use_beta_sigmoid_in_kernel:
        beta = beta.float().sigmoid()
    out, states = delta_rule(q, k, v, g, beta, scale, use_qk_l2norm_in_kernel, initial_state, documents)
    return out, states if output_final_state else None


def _gate(g, A_log, dt_bias, lower_bound):
    if A_log is None and lower_bound is None:
        raise ValueError("a gate in the kernel needs A_log or a lower bound")
    if dt_bias is not None:
        g = g + dt_bias.view(g.shape[-2:])
    rate = 1.0 if A_log is None else A_log.float().exp().view(-1, 1)
    return -rate * F.softplus(g) if lower_bound is None else lower_bound * torch.sigmoid(rate * g)
