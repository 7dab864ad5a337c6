"""Mamba 2: its scan, and the fusion of convolution, scan, gated norm and projection that training uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mamba_ssm.calls import calls

try:
    from causal_conv1d.cpp_functions import causal_conv1d_fwd_function
except ImportError:
    causal_conv1d_fwd_function = None


def mamba_chunk_scan_combined(
    x,
    dt,
    A,
    B,
    C,
    chunk_size,
    D=None,
    z=None,
    dt_bias=None,
    initial_states=None,
    seq_idx=None,
    cu_seqlens=None,
    dt_softplus=False,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    return_varlen_states=False,
):
    """x, z (B, L, H, P), dt (B, L, H), A (H,), B, C (B, L, G, N), D (H,) or (H, P), seq_idx (B, L) int32; returns x's shape.

    As in the real one cu_seqlens keeps nothing apart: it asks for the states between documents.
    """
    calls.append(("mamba_chunk_scan_combined", seq_idx))
    if return_varlen_states:
        raise NotImplementedError("the double returns no states between documents")
    _check(x, dt, A, B, C, seq_idx)
    documents = seq_idx
    out, states = _scan(x, dt, A, B, C, D, dt_bias, initial_states, documents, dt_softplus, dt_limit)
    out = (out if z is None else out * F.silu(z.float())).to(x.dtype)
    return (out, states) if return_final_states else out


def mamba_split_conv1d_scan_combined(
    zxbcdt,
    conv1d_weight,
    conv1d_bias,
    dt_bias,
    A,
    D,
    chunk_size,
    initial_states=None,
    seq_idx=None,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    activation="silu",
    rmsnorm_weight=None,
    rmsnorm_eps=1e-6,
    outproj_weight=None,
    outproj_bias=None,
    headdim=None,
    ngroups=1,
    norm_before_gate=True,
):
    """zxbcdt (B, L, 2 * H * P + 2 * G * N + H), seq_idx (B, L) int32; returns (B, L, H * P), projected if asked."""
    calls.append(("mamba_split_conv1d_scan_combined", seq_idx))
    assert activation in (None, "silu", "swish"), f"no activation {activation!r}"
    assert causal_conv1d_fwd_function is not None, "this kernel calls into causal_conv1d, which is not installed"
    assert headdim is not None or D.dim() == 2, "the size of a head is needed where D has one number a head"
    heads, headdim = D.shape[0], headdim or D.shape[-1]
    dim, mixed = heads * headdim, conv1d_weight.shape[0]
    size = (mixed - dim) // ngroups // 2
    assert zxbcdt.shape[-1] == dim + mixed + heads, f"{zxbcdt.shape[-1]} channels, not {dim + mixed + heads}"
    z, xBC, dt = zxbcdt.split([dim, mixed, heads], -1)
    _check_documents(seq_idx, zxbcdt.shape[:2])
    documents = seq_idx
    xBC = xBC.transpose(1, 2)
    # As in the real one: where the strides are not what the convolution takes, a copy is made, with channels first. So with
    # documents the channels of zxbcdt must be a multiple of 8.
    xBC = xBC if xBC.stride(2) % 8 == 0 else xBC.contiguous()
    silu = activation is not None
    xBC = causal_conv1d_fwd_function(xBC, conv1d_weight, conv1d_bias, documents, None, None, silu).transpose(1, 2)
    x, B, C = xBC.split([dim, ngroups * size, ngroups * size], -1)
    x, z = x.unflatten(-1, (heads, headdim)), z.unflatten(-1, (heads, headdim))
    B, C = (tensor.unflatten(-1, (ngroups, size)) for tensor in (B, C))
    out, states = _scan(x, dt, A, B, C, D, dt_bias, initial_states, documents, True, dt_limit)
    out = _gated(out.flatten(2), z.flatten(2).float(), rmsnorm_weight, rmsnorm_eps, ngroups, norm_before_gate).to(zxbcdt.dtype)
    if outproj_weight is not None:
        out = F.linear(out, outproj_weight, outproj_bias)
    return (out, states) if return_final_states else out


def _check(x, dt, A, B, C, seq_idx):
    batch, length, heads, _ = x.shape
    assert dt.shape == (batch, length, heads), f"dt is {tuple(dt.shape)}"
    assert A.shape == (heads,), f"A is {tuple(A.shape)}"
    assert B.shape == C.shape == (batch, length, *B.shape[2:]), f"B is {tuple(B.shape)}, C is {tuple(C.shape)}"
    assert heads % B.shape[2] == 0, f"{heads} heads are no multiple of {B.shape[2]} groups"
    _check_documents(seq_idx, (batch, length))


def _check_documents(seq_idx, wanted):
    if seq_idx is not None:
        assert tuple(seq_idx.shape) == tuple(wanted), f"documents are {tuple(seq_idx.shape)}, not {tuple(wanted)}"
        assert seq_idx.dtype == torch.int32, f"documents are {seq_idx.dtype}, not int32"


def _scan(x, dt, A, B, C, D, dt_bias, state, documents, softplus, limits):
    """A token at a time. Returns outputs (B, L, H, P) and last states (B, H, P, N), float32."""
    x, dt, A, B, C = (tensor.float() for tensor in (x, dt, A, B, C))
    dt = dt if dt_bias is None else dt + dt_bias.float()
    dt = (F.softplus(dt) if softplus else dt).clamp(*limits)
    B, C = (tensor.repeat_interleave(x.shape[2] // tensor.shape[2], 2) for tensor in (B, C))
    decay, dose = (dt * A).exp(), dt[..., None] * x
    state = x.new_zeros(*x.shape[:1], *x.shape[2:], B.shape[-1]) if state is None else state.float()
    outs = []
    for at in range(x.shape[1]):
        if documents is not None and at:
            new = documents[:, at] != documents[:, at - 1]
            state = state.masked_fill(new[:, None, None, None], 0.0)
        state = state * decay[:, at, :, None, None] + dose[:, at, :, :, None] * B[:, at, :, None]
        outs.append((state * C[:, at, :, None]).sum(-1))
    out = torch.stack(outs, 1)
    if D is not None:
        out = out + x * D.float().reshape(x.shape[2], -1)
    return out, state


def _gated(x, z, weight, eps, groups, norm_before_gate):
    if weight is None:
        return x * F.silu(z)
    if not norm_before_gate:
        x = x * F.silu(z)
    parts = x.unflatten(-1, (groups, -1))
    x = (parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight.float()
    return x * F.silu(z) if norm_before_gate else x
