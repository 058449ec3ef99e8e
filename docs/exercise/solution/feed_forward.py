"""Step 6. The MLP, or feed-forward network: it transforms each row on its own."""

from activation import gelu
from linear_map import linear


def mlp(x, in_weight, in_bias, out_weight, out_bias):
    """Widen each row, apply GELU, and narrow it again.

    Args:
        x: (batch, length, n_embd).
        in_weight: (n_embd, d_inner).
        in_bias: (d_inner,).
        out_weight: (d_inner, n_embd).
        out_bias: (n_embd,).
    """
    return linear(gelu(linear(x, in_weight, in_bias)), out_weight, out_bias)
