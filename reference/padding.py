"""Positions of tokens in rows with padding."""

import torch
from jaxtyping import Int

from attnspec.spec.padding import PaddedPositions


def token_positions(
    attention_mask: Int[torch.Tensor, "batch length"], rule: PaddedPositions
) -> Int[torch.Tensor, "batch length"]:
    r"""Return the position of each token: its slot, or the number of real tokens before it.

    .. math::
        p_i = i \quad\text{or}\quad p_i = \sum_{j < i} m_j

    Args:
        attention_mask: m, 1 for real tokens and 0 for padding.
        rule: the declared one.

    Clauses:
        ENC-15, CRS-22, CRS-23
    """
    if rule is PaddedPositions.SLOTS:
        return torch.arange(attention_mask.shape[1]).expand(attention_mask.shape)
    real = attention_mask.long()
    return real.cumsum(dim=1) - real
