"""Mamba 1: its scan, and the fusion of convolution, projections and scan that training uses. Neither takes boundaries."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mamba_ssm.calls import calls

try:
    from causal_conv1d.cpp_functions import causal_conv1d_fwd_function
except ImportError:
    causal_conv1d_fwd_function = None


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """u, delta, z (B, D, L), A (D, N), B, C (B, N, L), D and delta_bias (D,); returns (B, D, L)."""
    calls.append(("selective_scan_fn", None))
    out, state = _scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    return (out, state) if return_last_state else out


def mamba_inner_fn(
    xz,
    conv1d_weight,
    conv1d_bias,
    x_proj_weight,
    delta_proj_weight,
    out_proj_weight,
    out_proj_bias,
    A,
    B=None,
    C=None,
    D=None,
    delta_bias=None,
    B_proj_bias=None,
    C_proj_bias=None,
    delta_softplus=True,
    checkpoint_lvl=1,
    b_rms_weight=None,
    c_rms_weight=None,
    dt_rms_weight=None,
    b_c_dt_rms_eps=1e-6,
):
    """xz (B, 2 * D, L), conv1d_weight (D, 1, width); returns (B, L, out)."""
    calls.append(("mamba_inner_fn", None))
    assert causal_conv1d_fwd_function is not None, "this kernel calls into causal_conv1d, which is not installed"
    if any(tensor is not None for tensor in (B, C, B_proj_bias, C_proj_bias)):
        raise NotImplementedError("the double knows only B and C that depend on the input")
    x, z = xz.contiguous().chunk(2, dim=1)
    x = causal_conv1d_fwd_function(x, conv1d_weight.squeeze(1), conv1d_bias, None, None, None, True)
    rank, size = delta_proj_weight.shape[1], A.shape[-1]
    delta, B, C = F.linear(x.transpose(1, 2), x_proj_weight).split([rank, size, size], -1)
    weights = (dt_rms_weight, b_rms_weight, c_rms_weight)
    delta, B, C = (_norm(part, weight, b_c_dt_rms_eps) for part, weight in zip((delta, B, C), weights, strict=True))
    delta = F.linear(delta, delta_proj_weight).transpose(1, 2)
    out, _ = _scan(x, delta, A, B.transpose(1, 2), C.transpose(1, 2), D, z, delta_bias, delta_softplus)
    return F.linear(out.transpose(1, 2), out_proj_weight, out_proj_bias)


def _norm(x, weight, eps):
    # Of the weights that it is handed for delta, longer than its rows, the real one too reads as many as a row has.
    return x if weight is None else x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight[: x.shape[-1]]


def _scan(u, delta, A, B, C, D, z, delta_bias, softplus):
    kind = u.dtype
    u, delta, A, B, C = (tensor.float() for tensor in (u, delta, A, B, C))
    assert delta.shape == u.shape, f"delta is {tuple(delta.shape)}, u is {tuple(u.shape)}"
    assert B.shape == C.shape == (u.shape[0], A.shape[1], u.shape[2]), f"B is {tuple(B.shape)}, C is {tuple(C.shape)}"
    delta = delta if delta_bias is None else delta + delta_bias.float()[:, None]
    delta = F.softplus(delta) if softplus else delta
    state, outs = u.new_zeros(*u.shape[:2], A.shape[1]), []
    for at in range(u.shape[2]):
        step = delta[:, :, at, None]
        state = state * (step * A).exp() + step * u[:, :, at, None] * B[:, None, :, at]
        outs.append((state * C[:, None, :, at]).sum(-1))
    out = torch.stack(outs, 2)
    out = out if D is None else out + u * D.float()[:, None]
    return (out if z is None else out * F.silu(z.float())).to(kind), state
