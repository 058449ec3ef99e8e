"""Step 10. The stack: embeddings, all blocks, and the final LayerNorm."""

from embedding import embed
from norm import layer_norm
from transformer_block import block


def transformer(input_ids, parameters, config, cache=None):
    """Return the stream after the final LayerNorm, (batch, length, n_embd).

    Args:
        input_ids: (batch, length).
        parameters: all of them by name: transformer.wte.weight, transformer.h.0.ln_1.weight, ...
        config: n_layer, n_head and layer_norm_epsilon.
        cache: a dictionary for each layer, empty or with its keys and values so far.
    """
    kept = cache or [None] * config.n_layer
    past = kept[0]["key"].shape[2] if kept[0] else 0
    positions = parameters["transformer.wpe.weight"][past:]
    x = embed(input_ids, parameters["transformer.wte.weight"], positions)
    for layer in range(config.n_layer):
        prefix = f"transformer.h.{layer}."
        own = {
            name.removeprefix(prefix): tensor
            for name, tensor in parameters.items()
            if name.startswith(prefix)
        }
        x = block(x, own, config, kept[layer])
    gain, bias = parameters["transformer.ln_f.weight"], parameters["transformer.ln_f.bias"]
    return layer_norm(x, gain, bias, config.layer_norm_epsilon)
