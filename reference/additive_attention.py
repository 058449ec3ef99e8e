"""Additive attention, which a translation model had before there were Transformers."""

import torch
from jaxtyping import Bool, Float


def additive_scores(
    query: Float[torch.Tensor, "batch queries d_query"],
    key: Float[torch.Tensor, "batch keys d_key"],
    w_query: Float[torch.Tensor, "d_inner d_query"],
    w_key: Float[torch.Tensor, "d_inner d_key"],
    w_score: Float[torch.Tensor, " d_inner"],
    *,
    bias: Float[torch.Tensor, " d_inner"] | None = None,
) -> Float[torch.Tensor, "batch queries keys"]:
    r"""Score each pair of a query and a key by a network with one hidden layer.

    .. math::
        x_{ij} = v \cdot \tanh(W q_i + U k_j + b)

    Args:
        query: any unit.
        key: any unit.
        w_query: W.
        w_key: U.
        w_score: v.
        bias: b; zero if it is not given.

    Returns:
        At most the sum of the absolute values of v in magnitude.

    Clauses:
        ADD-1, ADD-6, ADD-7, ADD-8, ADD-9

    Source:
        Bahdanau et al. 2014, section A.1.2
    """
    projected = query @ w_query.mT
    if bias is not None:
        projected = projected + bias
    hidden = torch.tanh(projected[:, :, None] + (key @ w_key.mT)[:, None])
    return hidden @ w_score


def additive_attention(
    query: Float[torch.Tensor, "batch queries d_query"],
    key: Float[torch.Tensor, "batch keys d_key"],
    value: Float[torch.Tensor, "batch keys d_value"],
    w_query: Float[torch.Tensor, "d_inner d_query"],
    w_key: Float[torch.Tensor, "d_inner d_key"],
    w_score: Float[torch.Tensor, " d_inner"],
    *,
    bias: Float[torch.Tensor, " d_inner"] | None = None,
    mask: Bool[torch.Tensor, "batch keys"] | None = None,
) -> Float[torch.Tensor, "batch queries d_value"]:
    r"""Average the values by the softmax of additive scores.

    .. math::
        o_i = \sum_{j \in S} \frac{e^{x_{ij}}}{\sum_{l \in S} e^{x_{il}}}\, v_j

    Args:
        query: any unit.
        key: any unit.
        value: any unit.
        w_query: W.
        w_key: U.
        w_score: v.
        bias: b; zero if it is not given.
        mask: true for the real states S, at least one in each text; all if it is not given.

    Returns:
        Between the smallest and the largest real value of each channel.

    Clauses:
        ADD-1 to ADD-5, ADD-10 to ADD-13

    Source:
        Bahdanau et al. 2014, equations 5 and 6
    """
    scores = additive_scores(query, key, w_query, w_key, w_score, bias=bias)
    if mask is not None:
        scores = torch.where(mask[:, None], scores, -torch.inf)
    masses = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return masses / masses.sum(dim=-1, keepdim=True) @ value
