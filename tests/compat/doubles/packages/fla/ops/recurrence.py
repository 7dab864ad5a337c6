"""The delta rule, a token at a time, a document at a time."""

from __future__ import annotations

from itertools import pairwise

import torch

BLOCKS = 65_535  # that a grid has in its second dimension: one a document and value head


def check_documents(cu_seqlens, q, v, initial_state):
    """Raises ValueError, or RuntimeError for more documents than can be launched.

    The real kernels read past the end of the row, or leave parts of it unwritten, where the numbers do not fit.
    """
    (batch, length), heads = q.shape[:2], v.shape[2]
    if batch != 1:
        raise ValueError(f"a batch of {batch} rows with cumulative lengths: flatten it to one row")
    if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point() or cu_seqlens.dtype == torch.bool:
        raise ValueError(f"cumulative lengths are {tuple(cu_seqlens.shape)}, {cu_seqlens.dtype}, not integers in one dimension")
    if cu_seqlens.device != q.device:
        raise ValueError(f"cumulative lengths on {cu_seqlens.device}, the row on {q.device}")
    numbers = cu_seqlens.tolist()
    if len(numbers) < 2 or numbers[0] != 0 or numbers[-1] != length or any(after < before for before, after in pairwise(numbers)):
        raise ValueError(f"cumulative lengths {numbers[:8]} do not lead from 0 to {length}")
    count = len(numbers) - 1
    if initial_state is not None and initial_state.shape[0] != count:
        raise ValueError(f"{initial_state.shape[0]} initial states for {count} documents")
    if count > BLOCKS // heads:
        raise RuntimeError(f"invalid launch: {count} documents of {heads} heads, at most {BLOCKS // heads}")


def check_heads(q, k, v, g, beta, gate_shape):
    """Raises ValueError where the shapes do not go together."""
    if q.shape != k.shape:
        raise ValueError(f"queries are {tuple(q.shape)}, keys {tuple(k.shape)}")
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"{v.shape[2]} value heads are no multiple of {q.shape[2]} heads")
    if tuple(g.shape) != gate_shape or beta.shape != v.shape[:3]:
        raise ValueError(f"gates are {tuple(g.shape)}, not {gate_shape}, or betas {tuple(beta.shape)}, not {tuple(v.shape[:3])}")


def delta_rule(q, k, v, decay, beta, scale, normalise, initial_state, documents):
    """q, k (B, T, H, K), v (B, T, HV, V), decay (B, T, HV, K or 1) in log space, beta (B, T, HV), documents (N + 1,) or None.

    Returns outputs (B, T, HV, V) in the type of v, and the last states (N or B, HV, K, V) in float32.
    """
    kind = v.dtype
    q, k, v, decay, beta = (tensor.float() for tensor in (q, k, v, decay, beta))
    if normalise:
        q, k = (tensor * torch.rsqrt(tensor.square().sum(-1, keepdim=True) + 1e-6) for tensor in (q, k))
    groups = v.shape[2] // q.shape[2]
    row = (q.repeat_interleave(groups, 2) * scale, k.repeat_interleave(groups, 2), v, decay.exp(), beta)
    if documents is None:
        out, states = _run(*row, initial_state)
        return out.to(kind), states
    pieces = []
    for number, (start, end) in enumerate(pairwise(documents.tolist())):
        state = None if initial_state is None else initial_state[number : number + 1]
        pieces.append(_run(*(tensor[:, start:end] for tensor in row), state))
    outs, states = zip(*pieces, strict=True)
    return torch.cat(outs, 1).to(kind), torch.cat(states)


def _run(q, k, v, decay, beta, state):
    """One document, or a batch of rows: what the state holds for a key moves towards the value by beta."""
    if state is None:
        state = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3])
    state, outs = state.float(), []
    for at in range(v.shape[1]):
        key = k[:, at, :, :, None]
        state = state * decay[:, at, :, :, None]
        error = (v[:, at] - (state * key).sum(-2)) * beta[:, at, :, None]
        state = state + key * error[:, :, None]
        outs.append((state * q[:, at, :, :, None]).sum(-2))
    return torch.stack(outs, 1) if outs else torch.zeros_like(v), state
