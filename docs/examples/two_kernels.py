"""Two attentions: a profile may declare the behaviour of one, the other has a bug."""

import torch


def causal(scores):
    """Hide later keys, aligned so that the last query reads the last key."""
    queries, keys = scores.shape[-2:]
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return scores.masked_fill(~visible, -torch.inf)


def decoder(query, key, value, is_causal=False, scale=None):
    """Compute attention in plain PyTorch, with the causal alignment of decoding."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = causal(scores)
    return scores.softmax(-1) @ value


def careless(query, key, value, is_causal=False, scale=None):
    """Compute the same, with weights in float16 for operands of every dtype."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = causal(scores)
    return scores.half().softmax(-1).to(value.dtype) @ value
