import math
import torch


def attention(query, key, value, is_causal=False, scale=None):
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * scale
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if is_causal:
        visible = visible.tril(-1)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    return weights.masked_fill(~visible, 0) @ value
