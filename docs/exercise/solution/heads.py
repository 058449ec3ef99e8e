"""Step 8. Multi-head attention: several heads, each on its share of the channels."""

import torch
from attention import causal_attention
from linear_map import linear


def multi_head_attention(x, qkv_weight, qkv_bias, out_weight, out_bias, n_head, kept=None):
    """Project to queries, keys and values, attend in each head, and project back.

    Args:
        x: (batch, length, n_embd).
        qkv_weight: (n_embd, 3 * n_embd): the columns of queries, then keys, then values.
        qkv_bias: (3 * n_embd,).
        out_weight: (n_embd, n_embd).
        out_bias: (n_embd,).
        n_head: the number of heads.
        kept: this layer's part of a KV cache, which the new keys and values are added to.
    """
    batch, length, channels = x.shape
    query, key, value = (
        part.view(batch, length, n_head, channels // n_head).transpose(1, 2)
        for part in linear(x, qkv_weight, qkv_bias).chunk(3, dim=-1)
    )
    if kept is not None:
        if kept:
            key = torch.cat([kept["key"], key], dim=2)
            value = torch.cat([kept["value"], value], dim=2)
        kept.update(key=key, value=value)
    mixed = causal_attention(query, key, value)
    return linear(mixed.transpose(1, 2).reshape(batch, length, channels), out_weight, out_bias)
