"""The multi-layer perceptron of a block."""

from collections.abc import Callable

import torch
from jaxtyping import Float

from attnspec.reference.linear import linear


def mlp(
    x: Float[torch.Tensor, "*batch d_model"],
    in_weight: Float[torch.Tensor, "d_model d_inner"],
    in_bias: Float[torch.Tensor, " d_inner"],
    out_weight: Float[torch.Tensor, "d_inner d_model"],
    out_bias: Float[torch.Tensor, " d_model"],
    *,
    activation: Callable[[torch.Tensor], torch.Tensor],
) -> Float[torch.Tensor, "*batch d_model"]:
    """Widen each row linearly, apply the activation, and narrow it linearly.

    Args:
        x: the normalized residual stream, dimensionless.
        in_weight: input-major.
        in_bias: one per inner channel.
        out_weight: input-major.
        out_bias: one per channel of the model.
        activation: applied to every element in between; GPT-2's is the tanh-GELU.

    Returns:
        The term that the MLP adds to the residual stream.

    Clauses:
        GPT-5, ACT-5

    Source:
        Radford et al. 2018, section 4.1 (GPT-2 keeps it)
    """
    return linear(activation(linear(x, in_weight, in_bias)), out_weight, out_bias)
