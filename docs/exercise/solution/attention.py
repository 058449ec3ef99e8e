"""Step 7. Causal attention of one head."""

import math

import torch


def causal_attention(query, key, value):
    """Return, for each query, the mean of the values weighted by the softmax of its scores.

    Args:
        query: (..., length, d_head); the axes before are treated each on its own.
        key: of the same shape.
        value: of the same shape.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    length = query.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value
