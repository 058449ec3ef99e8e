"""Step 5. GELU, the activation function of the MLP."""

import math

import torch


def gelu(x):
    """Apply GELU to each element.

    Args:
        x: of any shape.
    """
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
