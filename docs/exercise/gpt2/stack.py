"""Step 10. The stack: embeddings, all blocks, and the final LayerNorm."""

import torch
from embedding import embed
from norm import layer_norm
from transformer_block import block


def transformer(input_ids, parameters, config):
    """Return the stream after the final LayerNorm, (batch, length, n_embd).

    Args:
        input_ids: (batch, length).
        parameters: all of them by name: transformer.wte.weight, transformer.h.0.ln_1.weight, ...
        config: n_layer, n_head and layer_norm_epsilon.
    """
    # Hint: block takes the names without transformer.h.0. in front, so pick those of each layer.
    # Mind layer 1 and layer 10.
    raise NotImplementedError
