"""Step 1. Names and shapes: take the parameters of a checkpoint, or refuse them."""

import torch


def load_parameters(config, state_dict):
    """Return the parameters by name, or raise an error that names the one that does not fit.

    Args:
        config: sizes: n_layer, n_embd, n_positions, vocab_size, and d_inner, the inner width of
            the MLP, which is 4 * n_embd unless the configuration says otherwise.
        state_dict: tensors by name, such as transformer.h.0.attn.c_attn.weight.
    """
    # Hint: write down the shape that each name must have, then compare. A weight of a linear map
    # has the shape (inputs, outputs). The names ending in .attn.bias and .attn.masked_bias are
    # masks of old checkpoints: leave them out.
    raise NotImplementedError
