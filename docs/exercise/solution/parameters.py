"""Step 1. Names and shapes: take the parameters of a checkpoint, or refuse them."""


def load_parameters(config, state_dict):
    """Return the parameters by name, or raise an error that names the one that does not fit.

    Args:
        config: sizes: n_layer, n_embd, n_positions, vocab_size, and d_inner, the inner width of
            the MLP, which is 4 * n_embd unless the configuration says otherwise.
        state_dict: tensors by name, such as transformer.h.0.attn.c_attn.weight.
    """
    n = config.n_embd
    shapes = {
        "transformer.wte.weight": (config.vocab_size, n),
        "transformer.wpe.weight": (config.n_positions, n),
        "transformer.ln_f.weight": (n,),
        "transformer.ln_f.bias": (n,),
    }
    maps = {
        "attn.c_attn": (n, 3 * n),
        "attn.c_proj": (n, n),
        "mlp.c_fc": (n, config.d_inner),
        "mlp.c_proj": (config.d_inner, n),
    }
    for layer in range(config.n_layer):
        block = f"transformer.h.{layer}"
        for norm in ("ln_1", "ln_2"):
            shapes[f"{block}.{norm}.weight"] = shapes[f"{block}.{norm}.bias"] = (n,)
        for name, shape in maps.items():
            shapes[f"{block}.{name}.weight"] = shape
            shapes[f"{block}.{name}.bias"] = shape[1:]
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, n)
    for name, shape in shapes.items():
        if name not in state_dict:
            raise ValueError(f"{name} is missing")
        if tuple(state_dict[name].shape) != shape:
            raise ValueError(f"{name} has shape {tuple(state_dict[name].shape)}, not {shape}")
    for name in state_dict:
        if name not in shapes and not name.endswith((".attn.bias", ".attn.masked_bias")):
            raise ValueError(f"{name} is no parameter of this model")
    return {name: state_dict[name] for name in shapes}
