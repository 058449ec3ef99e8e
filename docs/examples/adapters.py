"""Adapters of the guide: a kernel that needs three of them, and a function of JAX."""

import torch

from attnspec.implementations.adapters import (
    from_heads_after_length,
    from_log_sum_exp,
    from_other_names,
)


def my_kernel(q, k, v, causal=False, sm_scale=None):
    """Take tensors (batch, length, heads, channels); return out, and lse in base 2."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (sm_scale or q.shape[-1] ** -0.5)
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    return out, torch.logsumexp(scores, -1) * 1.4426950408889634


renamed = from_other_names(my_kernel, is_causal="causal", scale="sm_scale")
attention = from_heads_after_length(from_log_sum_exp(renamed, base=2))


def from_jax(function):
    """Hand tensors over and back by DLPack, without a copy."""

    def attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
        import jax

        moved = (x.detach().transpose(1, 2).contiguous() for x in (query, key, value))
        arrays = (jax.dlpack.from_dlpack(tensor) for tensor in moved)
        out = function(*arrays, is_causal=is_causal, scale=scale)
        return torch.from_dlpack(out).transpose(1, 2)

    return attention
