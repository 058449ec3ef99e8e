"""PyTorch's softmax and log-sum-exp, as an online softmax that holds all scores."""

import torch
from jaxtyping import Float

from attnspec.spec.online_softmax import OnlineSoftmaxImplementation


def _softmax(
    scores: Float[torch.Tensor, "queries keys"], values: Float[torch.Tensor, "keys d_value"]
) -> tuple[Float[torch.Tensor, "queries d_value"], Float[torch.Tensor, " queries"]]:
    """Return the mean of the values, with zeros for rows without visible scores."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    is_empty = (wide == -torch.inf).all(-1, keepdim=True)
    # torch's softmax of such a row is NaN
    weights = torch.softmax(torch.where(is_empty, 0.0, wide), -1).masked_fill(is_empty, 0.0)
    out = weights @ values.to(wide.dtype)
    return out.to(scores.dtype), torch.logsumexp(wide, -1)


IMPLEMENTATION = OnlineSoftmaxImplementation(name="torch_softmax", function=_softmax)
