"""Step 10. The stack: embeddings, all blocks, and the final LayerNorm."""

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
    x = embed(input_ids, parameters["transformer.wte.weight"], parameters["transformer.wpe.weight"])
    for layer in range(config.n_layer):
        prefix = f"transformer.h.{layer}."
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in parameters.items()
            if name.startswith(prefix)
        }
        x = block(x, own, config)
    gain, bias = parameters["transformer.ln_f.weight"], parameters["transformer.ln_f.bias"]
    return layer_norm(x, gain, bias, config.layer_norm_epsilon)
