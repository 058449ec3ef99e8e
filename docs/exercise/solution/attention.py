"""Step 7. Causal attention of one head."""

import math

import torch


def causal_attention(query, key, value):
    """Return, for each query, the mean of the values weighted by the softmax of its scores.

    Args:
        query: (..., length, d_head).
        key: (..., past + length, d_head): with a KV cache, the cached keys come before the new
            ones; without one, past is 0.
        value: of the shape of key.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    length, past = query.shape[-2], key.shape[-2] - query.shape[-2]
    hidden = torch.ones(length, past + length, dtype=torch.bool).triu(1 + past)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value
