"""Root mean square normalization, the LayerNorm of Llama and its relatives."""

import torch
from jaxtyping import Float


def rms_norm(
    x: Float[torch.Tensor, "*batch d_model"],
    weight: Float[torch.Tensor, " d_model"],
    *,
    epsilon: float,
    is_one_plus: bool = False,
) -> Float[torch.Tensor, "*batch d_model"]:
    r"""Scale each row to root mean square 1, then channel by channel as learned.

    .. math::
        y_c = \frac{x_c}{\sqrt{\frac{1}{d} \sum_c x_c^2 + \varepsilon}}, \qquad
        \mathrm{RMSNorm}(x)_c = g_c\, y_c

    Args:
        x: any unit.
        weight: the gain of each channel, g; or g − 1.
        epsilon: added to the mean square, inside the root; positive.
        is_one_plus: whether the weights are g − 1, as in Gemma.

    Returns:
        Rows of root mean square at most 1 before the learned map; each row depends on itself
        alone.

    Clauses:
        RMS-1, RMS-2, RMS-4, RMS-6, RMS-9

    Source:
        Zhang and Sennrich 2019, equation 4; with epsilon inside the root as in LayerNorm
    """
    mean_square = (x**2).mean(dim=-1, keepdim=True)
    gain = 1 + weight if is_one_plus else weight
    return gain * (x / torch.sqrt(mean_square + epsilon))
