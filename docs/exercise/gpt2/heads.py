"""Step 8. Multi-head attention: several heads, each on its share of the channels."""

import torch
from attention import causal_attention
from linear_map import linear


def multi_head_attention(x, qkv_weight, qkv_bias, out_weight, out_bias, n_head):
    """Project to queries, keys and values, attend in each head, and project back.

    Args:
        x: (batch, length, n_embd).
        qkv_weight: (n_embd, 3 * n_embd): the columns of queries, then keys, then values.
        qkv_bias: (3 * n_embd,).
        out_weight: (n_embd, n_embd).
        out_bias: (n_embd,).
        n_head: the number of heads.
    """
    # Hint: split the projection in three, then each into heads: (batch, n_head, length, d_head).
    # causal_attention takes all heads at once. Which axis must move before, and which after?
    raise NotImplementedError
