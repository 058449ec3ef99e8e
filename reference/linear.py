"""The linear map, in the layout of GPT-2's checkpoints."""

import torch
from jaxtyping import Float


def linear(
    x: Float[torch.Tensor, "*batch d_in"],
    weight: Float[torch.Tensor, "d_in d_out"],
    bias: Float[torch.Tensor, " d_out"],
) -> Float[torch.Tensor, "*batch d_out"]:
    """Map each row linearly: y = xW + b.

    Args:
        x: any unit.
        weight: input-major, as GPT-2 stores it (`Conv1D`); the transpose of `torch.nn.Linear`'s.
        bias: one per output channel.

    Returns:
        One row per row of `x`.

    Clauses:
        GPT-1
    """
    return torch.einsum("...i,io->...o", x, weight) + bias
