"""Step 9. The block: attention, then the MLP, each added to the residual stream."""

import torch
from feed_forward import mlp
from heads import multi_head_attention
from norm import layer_norm


def block(x, parameters, config):
    """Return the stream after one block.

    Args:
        x: the residual stream, (batch, length, n_embd).
        parameters: those of this block by name: ln_1.weight, attn.c_attn.weight, mlp.c_fc.bias, ...
        config: n_head and layer_norm_epsilon.
    """
    # Hint: two sums. What is normalized: the stream, or what a branch reads of it?
    raise NotImplementedError
