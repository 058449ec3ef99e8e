"""Layer normalization."""

import torch
from jaxtyping import Float


def layer_norm(
    x: Float[torch.Tensor, "*batch d_model"],
    weight: Float[torch.Tensor, " d_model"],
    bias: Float[torch.Tensor, " d_model"],
    *,
    epsilon: float,
) -> Float[torch.Tensor, "*batch d_model"]:
    r"""Shift and scale each row to mean 0 and variance 1, then channel by channel as learned.

    .. math::
        y_c = \gamma_c \frac{x_c - \mu}{\sqrt{\sigma^2 + \varepsilon}} + \beta_c, \qquad
        \mu = \frac{1}{d} \sum_c x_c, \qquad \sigma^2 = \frac{1}{d} \sum_c (x_c - \mu)^2

    Args:
        x: any unit.
        weight: the gain of each channel: :math:`\gamma`.
        bias: the shift of each channel: :math:`\beta`.
        epsilon: added to the variance, inside the root; not negative.

    Returns:
        Rows of mean 0 and variance at most 1 before the learned map; each row depends on itself
        alone.

    Clauses:
        LNM-1, LNM-2, LNM-5, LNM-6

    Source:
        Ba et al. 2016, equation 4, with the variance biased and epsilon inside the root
    """
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred**2).mean(dim=-1, keepdim=True)
    return weight * (centred / torch.sqrt(variance + epsilon)) + bias
