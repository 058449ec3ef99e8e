"""Attention: the definition that everything else in this project is held to."""

import torch
from jaxtyping import Bool, Float


def attention(
    query: Float[torch.Tensor, "*batch queries d_head"],
    key: Float[torch.Tensor, "*batch keys d_head"],
    value: Float[torch.Tensor, "*batch keys d_value"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
    *,
    scale: float,
    bias: Float[torch.Tensor, "*#batch #queries #keys"] | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "..."] | None = None,
    keep: Float[torch.Tensor, "*#batch #queries #keys"] | None = None,
) -> tuple[Float[torch.Tensor, "*batch queries d_value"], Float[torch.Tensor, "*batch queries"]]:
    r"""Mix the values by how well each query matches the keys that it may read.

    .. math::
        o_i = \sum_{j \in S_i} p_{ij} v_j, \qquad
        p_{ij} = \frac{e^{x_{ij}}}{e^{z} + \sum_{l \in S_i} e^{x_{il}}}, \qquad
        x_{ij} = c \tanh\frac{s\, q_i \cdot k_j}{c} + b_{ij}

    Args:
        query: dimensionless. A NaN makes its row NaN where the row may read anything.
        key: dimensionless. A NaN makes the rows NaN that may read it, and no other.
        value: any unit. A NaN makes its channel NaN in the rows that may read it, and in no other.
        visible: true where query *i* may read key *j*: the set :math:`S_i`.
        scale: multiplies the scores: :math:`s`, any sign; GPT-2 uses ``d_head ** -0.5``.
        bias: added to the scores: :math:`b`; minus infinity hides a key. None adds nothing.
        softcap: bounds the scores to ``(-softcap, softcap)``: :math:`c > 0`. None bounds nothing.
        sinks: one more logit per head that takes weight and carries no value: :math:`z`.
            None is minus infinity.
        keep: multiplies the weights: 0 or ``1 / (1 - p)`` under dropout. None keeps all.

    Returns:
        The mixed values in the unit of `value`, and the natural logarithm of the denominator. A
        query that may read nothing gives zeros, and minus infinity or the sink's logit.

    Clauses:
        ATT-1, MSK-4, MSK-12, MSK-14, NUM-1

    Source:
        Vaswani et al. 2017, equation 1; softcap: Gemma Team 2024, section 2; sinks: Miller 2023
    """
    if bias is not None:
        visible = visible & (bias != -torch.inf)
    key = torch.where(visible.any(dim=-2).unsqueeze(-1), key, 0.0)  # no 0 * NaN in the gradient

    # SCORES
    scores = scale * torch.einsum("...qd,...kd->...qk", query, key)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = torch.where(visible, scores, -torch.inf)

    # WEIGHTS
    sink = scores.new_tensor(-torch.inf) if sinks is None else sinks[..., None, None]
    logits = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    peak = logits.detach().amax(dim=-1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    weights = torch.exp(logits - peak)
    total = weights.sum(dim=-1, keepdim=True)
    is_empty = total == 0
    total = torch.where(is_empty, 1.0, total)
    weights = weights[..., :-1] / total
    if keep is not None:
        weights = weights * keep
    lse = torch.where(is_empty, -torch.inf, peak + torch.log(total)).squeeze(-1)

    # CONTEXT
    return _mix(weights, value, visible), lse


def _mix(
    weights: Float[torch.Tensor, "*batch queries keys"],
    value: Float[torch.Tensor, "*batch keys d_value"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
) -> Float[torch.Tensor, "*batch queries d_value"]:
    """Sum the weighted values; NaN and infinity reach exactly the queries that may read them.

    A plain product would not do: an unreadable key has weight 0, and 0 * NaN is NaN.
    """
    finite = value.isfinite()
    context = torch.einsum("...qk,...kv->...qv", weights, torch.where(finite, value, 0.0))
    if finite.all():
        return context

    readers = visible.expand(weights.shape).to(weights.dtype)

    def reaches(special: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...qk,...kv->...qv", readers, special.to(weights.dtype)) > 0

    context = torch.where(reaches(value == torch.inf), context + torch.inf, context)
    context = torch.where(reaches(value == -torch.inf), context - torch.inf, context)
    return torch.where(reaches(value.isnan()), torch.nan, context)
