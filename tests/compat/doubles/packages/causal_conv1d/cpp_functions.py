"""The compiled part: what it demands of its arguments, and the convolution. Fused kernels of other packages call it too."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def causal_conv1d_fwd_function(x, weight, bias, seq_idx, initial_states, final_states_out, silu_activation):
    """Raises RuntimeError for what the compiled kernel does not take."""
    if x.stride(2) != 1 and x.stride(1) != 1:
        x = x.contiguous()
    channel_last = x.stride(1) == 1 and x.stride(2) > 1
    _check(x, weight, bias, channel_last)
    if seq_idx is not None:
        _check_documents(x, seq_idx, channel_last)
    documents = seq_idx
    out = _convolve(x.to(weight.dtype), weight, bias, documents)
    out = (F.silu(out) if silu_activation else out).to(x.dtype)
    return out.transpose(1, 2).contiguous().transpose(1, 2) if channel_last else out


def _check(x, weight, bias, channel_last):
    dim, width = weight.shape
    _demand(x.dim() == 3 and x.shape[1] == dim, f"x is {tuple(x.shape)}, the weight has {dim} channels")
    _demand(2 <= width <= 4, f"a width of {width}: only 2 to 4")
    if channel_last:
        _demand(dim % 8 == 0, f"{dim} channels: with channels last only multiples of 8")
        strides = (x.stride(0), x.stride(2))
        _demand(all(stride % 8 == 0 for stride in strides), f"strides of {strides}: with channels last only multiples of 8")
    if bias is not None:
        _demand(bias.dtype == weight.dtype and tuple(bias.shape) == (dim,), f"a bias of {tuple(bias.shape)}, {bias.dtype}")


def _check_documents(x, seq_idx, channel_last):
    _demand(channel_last, f"documents need channels last, x has strides {x.stride()}")
    _demand(seq_idx.dtype == torch.int32, f"documents are {seq_idx.dtype}, not int32")
    _demand(seq_idx.device == x.device, f"documents on {seq_idx.device}, x on {x.device}")
    _demand(seq_idx.is_contiguous(), "documents are not contiguous")
    wanted = (x.shape[0], x.shape[2])
    _demand(tuple(seq_idx.shape) == wanted, f"documents are {tuple(seq_idx.shape)}, not {wanted}")


def _demand(holds, otherwise):
    if not holds:
        raise RuntimeError(f"causal_conv1d: {otherwise}")


def _convolve(x, weight, bias, documents):
    """A sum over shifted copies of the row; a copy counts only where it comes from the same document."""
    width, length = weight.shape[1], x.shape[2]
    out = torch.zeros_like(x) if bias is None else bias[:, None].expand_as(x)
    for back in range(width):
        tap = F.pad(x, (back, 0))[..., :length]
        if documents is not None:
            origin = F.pad(documents, (back, 0), value=-1)[:, :length]
            tap = tap.masked_fill((origin != documents)[:, None], 0.0)
        out = out + weight[:, width - 1 - back, None] * tap
    return out
