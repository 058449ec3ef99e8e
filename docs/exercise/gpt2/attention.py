"""Step 7. Causal attention of one head."""

import torch


def causal_attention(query, key, value):
    """Return, for each query, the mean of the values weighted by the softmax of its scores.

    Args:
        query: (..., length, d_head); the axes before are treated each on its own.
        key: of the same shape.
        value: of the same shape.
    """
    # Hint: scores = query @ key.transpose(-2, -1), divided by the root of d_head. Row i has the
    # scores of query i. Hide the keys behind i with minus infinity before the softmax.
    raise NotImplementedError
