"""Step 8. Multi-head attention: several heads, each on its share of the channels."""

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
    batch, length, channels = x.shape
    query, key, value = (
        part.view(batch, length, n_head, channels // n_head).transpose(1, 2)
        for part in linear(x, qkv_weight, qkv_bias).chunk(3, dim=-1)
    )
    mixed = causal_attention(query, key, value)
    return linear(mixed.transpose(1, 2).reshape(batch, length, channels), out_weight, out_bias)
