"""Two attentions: one has habits that a profile may declare, the other has a bug."""

import torch


def causal(scores):
    """Hide the future; the last query reads the last key."""
    queries, keys = scores.shape[-2:]
    visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return scores.masked_fill(~visible, -torch.inf)


def decoder(query, key, value, is_causal=False, scale=None):
    """Written in plain PyTorch, with the diagonal where decoding needs it."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = causal(scores)
    return scores.softmax(-1) @ value


def careless(query, key, value, is_causal=False, scale=None):
    """The same, with weights in float16, whatever the dtype of the operands."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = causal(scores)
    return scores.half().softmax(-1).to(value.dtype) @ value
