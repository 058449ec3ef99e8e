"""Attention: the definition that everything else in this project is held to.

`attention` is the definition in three steps: scores, weights, mix. `attention_with_options` is the
same three steps with bias, softcap, sinks and dropout between them.
"""

import torch
from jaxtyping import Bool, Float

from attnspec.spec import SoftcapOrder


def attention(
    query: Float[torch.Tensor, "*batch queries d_head"],
    key: Float[torch.Tensor, "*batch keys d_head"],
    value: Float[torch.Tensor, "*batch keys d_value"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
    *,
    scale: float,
) -> Float[torch.Tensor, "*batch queries d_value"]:
    r"""Mix the values by how well each query matches the keys that it may read.

    .. math::
        o_i = \sum_{j \in S_i} p_{ij} v_j, \qquad
        p_{ij} = \frac{e^{x_{ij}}}{\sum_{l \in S_i} e^{x_{il}}}, \qquad
        x_{ij} = s\, q_i \cdot k_j

    Args:
        query: dimensionless. A NaN makes its row NaN if the row may read anything.
        key: dimensionless. A NaN makes the rows NaN that may read it, and no other.
        value: any unit. A NaN makes its channel NaN in the rows that may read it, and in no other.
        visible: true if query *i* may read key *j*: the set :math:`S_i`.
        scale: multiplies the scores: :math:`s`, any sign; GPT-2 uses ``d_head ** -0.5``.

    Returns:
        The mixed values in the unit of `value`; zeros for a query that may read nothing.

    Clauses:
        ATT-1, MSK-4, MSK-12, MSK-14, NUM-1

    Source:
        Vaswani et al. 2017, equation 1
    """
    scores = score_keys(query, key, visible, scale=scale)
    weights, _ = softmax(scores, visible)
    return mix_values(weights, value, visible)


def score_keys(
    query: Float[torch.Tensor, "*batch queries d_head"],
    key: Float[torch.Tensor, "*batch keys d_head"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
    *,
    scale: float,
) -> Float[torch.Tensor, "*batch queries keys"]:
    r"""Compute how well each query matches each key.

    .. math:: x_{ij} = s\, q_i \cdot k_j

    Args:
        query: dimensionless.
        key: dimensionless. A key that no query may read is replaced by zeros.
        visible: true if query *i* may read key *j*.
        scale: multiplies the scores: :math:`s`, any sign.

    Returns:
        Dimensionless scores, also of keys that their query may not read: `softmax` hides those.

    Clauses:
        ATT-1, MSK-14

    Source:
        Vaswani et al. 2017, equation 1
    """
    # Without this line, a NaN in an unread key reaches the gradient of the queries as 0 * NaN.
    key = torch.where(visible.any(dim=-2).unsqueeze(-1), key, 0.0)
    return scale * torch.einsum("...qd,...kd->...qk", query, key)


def softmax(
    scores: Float[torch.Tensor, "*batch queries keys"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
    sinks: Float[torch.Tensor, "*#batch"] | None = None,
) -> tuple[Float[torch.Tensor, "*batch queries keys"], Float[torch.Tensor, "*batch queries"]]:
    r"""Share one unit of weight out among the keys that a query may read.

    .. math:: p_{ij} = \frac{e^{x_{ij}}}{e^{z} + \sum_{l \in S_i} e^{x_{il}}}

    Args:
        scores: dimensionless: :math:`x`.
        visible: true if query *i* may read key *j*: the set :math:`S_i`.
        sinks: one more logit per head, which takes weight and carries no value: :math:`z`.
            None is minus infinity.

    Returns:
        Weights in [0, 1], zero at keys that may not be read; and the natural logarithm of the
        denominator. A query that may read nothing gives zeros, and minus infinity or the sink.

    Clauses:
        ATT-1, ATT-26, ATT-28, ATT-29, ATT-30, ATT-31, MSK-4

    Source:
        Vaswani et al. 2017, equation 1; sinks: Miller 2023
    """
    logits = torch.where(visible, scores, -torch.inf)
    # The sink is one more column, so that a row without keys has a maximum too.
    sink = scores.new_tensor(-torch.inf) if sinks is None else sinks[..., None, None]
    logits = torch.cat([logits, sink.expand(*logits.shape[:-1], 1)], dim=-1)

    # No exponential overflows if the largest logit of the row is subtracted first.
    peak = logits.detach().amax(dim=-1, keepdim=True)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    masses = torch.exp(logits - peak)
    total = masses.sum(dim=-1, keepdim=True)
    is_empty = total == 0
    total = torch.where(is_empty, 1.0, total)
    weights = masses[..., :-1] / total
    return weights, torch.where(is_empty, -torch.inf, peak + torch.log(total)).squeeze(-1)


def mix_values(
    weights: Float[torch.Tensor, "*batch queries keys"],
    value: Float[torch.Tensor, "*batch keys d_value"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
) -> Float[torch.Tensor, "*batch queries d_value"]:
    r"""Sum the weighted values; NaN and infinity reach exactly the queries that may read them.

    .. math:: o_i = \sum_{j \in S_i} p_{ij} v_j

    A plain product would not do: an unreadable key has weight 0, and 0 * NaN is NaN.

    Args:
        weights: dimensionless, zero at keys that may not be read: :math:`p`.
        value: any unit.
        visible: true if query *i* may read key *j*: the set :math:`S_i`.

    Returns:
        The mixed values in the unit of `value`.

    Clauses:
        ATT-1, MSK-14, NUM-1
    """
    finite = value.isfinite()
    context = torch.einsum("...qk,...kv->...qv", weights, torch.where(finite, value, 0.0))
    if finite.all():
        return context

    readers = visible.expand(weights.shape).to(weights.dtype)

    def is_read(special: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...qk,...kv->...qv", readers, special.to(weights.dtype)) > 0

    context = torch.where(is_read(value == torch.inf), context + torch.inf, context)
    context = torch.where(is_read(value == -torch.inf), context - torch.inf, context)
    return torch.where(is_read(value.isnan()), torch.nan, context)


def attention_with_options(
    query: Float[torch.Tensor, "*batch queries d_head"],
    key: Float[torch.Tensor, "*batch keys d_head"],
    value: Float[torch.Tensor, "*batch keys d_value"],
    visible: Bool[torch.Tensor, "*#batch #queries #keys"],
    *,
    scale: float,
    bias: Float[torch.Tensor, "*#batch #queries #keys"] | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, "*#batch"] | None = None,
    dropout_p: float = 0.0,
    softcap_order: SoftcapOrder = SoftcapOrder.BEFORE_BIAS,
) -> tuple[Float[torch.Tensor, "*batch queries d_value"], Float[torch.Tensor, "*batch queries"]]:
    r"""Do what `attention` does, with one more step for each option that is given.

    .. math::
        o_i = \sum_{j \in S_i} p_{ij} v_j, \qquad
        p_{ij} = \frac{e^{x_{ij}}}{e^{z} + \sum_{l \in S_i} e^{x_{il}}}, \qquad
        x_{ij} = c \tanh\frac{s\, q_i \cdot k_j}{c} + b_{ij}

    Args:
        query: as in `attention`.
        key: as in `attention`.
        value: as in `attention`.
        visible: as in `attention`.
        scale: as in `attention`.
        bias: added to the scores: :math:`b`; minus infinity hides a key. None adds nothing.
        softcap: bounds the scaled scores: :math:`c > 0`. None bounds nothing.
        sinks: one more logit per head, which takes weight and carries no value: :math:`z`.
            None is minus infinity.
        dropout_p: the probability in [0, 1] with which each weight is dropped.
        softcap_order: `after_bias` bounds the sum of scaled scores and bias instead,
            :math:`x_{ij} = c \tanh((s\, q_i \cdot k_j + b_{ij}) / c)`; hidden keys stay hidden.

    Returns:
        The mixed values in the unit of `value`, and the natural logarithm of the denominator. A
        query that may read nothing gives zeros, and minus infinity or the sink's logit.

    Clauses:
        ATT-1, ATT-21, ATT-23, ATT-26, ATT-30, MSK-4, MSK-12, MSK-14, NUM-1
    """
    if bias is not None:
        visible = visible & (bias != -torch.inf)
    scores = score_keys(query, key, visible, scale=scale)
    caps_bias = softcap_order == SoftcapOrder.AFTER_BIAS
    if softcap is not None and not caps_bias:
        scores = cap_scores(scores, softcap)
    if bias is not None:
        scores = scores + bias
    if softcap is not None and caps_bias:
        scores = cap_scores(scores, softcap)
    weights, lse = softmax(scores, visible, sinks)
    if dropout_p > 0:
        weights = drop_weights(weights, dropout_p)
    return mix_values(weights, value, visible), lse


def cap_scores(
    scores: Float[torch.Tensor, "*batch"], softcap: float
) -> Float[torch.Tensor, "*batch"]:
    r"""Bound the scores smoothly to ``(-softcap, softcap)``.

    .. math:: \tau(t) = c \tanh\frac{t}{c}

    Args:
        scores: dimensionless: :math:`t`.
        softcap: the bound: :math:`c > 0`, finite.

    Returns:
        Scores in the same order; close to `scores` where those are far below the softcap.

    Clauses:
        ATT-21, ATT-22, ATT-24

    Source:
        Gemma Team 2024, section 2
    """
    return softcap * torch.tanh(scores / softcap)


def drop_weights(
    weights: Float[torch.Tensor, "*batch"], dropout_p: float
) -> Float[torch.Tensor, "*batch"]:
    r"""Set each weight to zero with a given probability, and scale up the rest.

    .. math:: \tilde p_{ij} = \frac{\delta_{ij}}{1 - \rho}\, p_{ij}, \qquad
        \Pr[\delta_{ij} = 0] = \rho

    Args:
        weights: dimensionless: :math:`p`.
        dropout_p: the probability :math:`\rho` in (0, 1]; 1 drops every weight.

    Returns:
        Weights whose mean over all draws from PyTorch's global generator is `weights`, if
        `dropout_p` is below 1.

    Clauses:
        DRP-2, DRP-3, DRP-4, DRP-5, DRP-6

    Source:
        Srivastava et al. 2014
    """
    kept = torch.rand(weights.shape, device=weights.device) >= dropout_p
    return weights * (kept.to(weights.dtype) * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0))
