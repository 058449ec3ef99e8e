"""Step 5. GELU, the activation function of the MLP."""

import torch


def gelu(x):
    """Apply GELU to each element.

    Args:
        x: of any shape.
    """
    # Hint: there are two functions of this name. GPT-2 uses the one with the hyperbolic tangent.
    raise NotImplementedError
