"""Step 9. The block: attention, then the MLP, each added to the residual stream."""

from feed_forward import mlp
from heads import multi_head_attention
from norm import layer_norm

NAMES_OF_ATTENTION = ("c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias")
NAMES_OF_MLP = ("c_fc.weight", "c_fc.bias", "c_proj.weight", "c_proj.bias")


def block(x, parameters, config, kept=None):
    """Return the stream after one block.

    Args:
        x: the residual stream, (batch, length, n_embd).
        parameters: those of this block by name: ln_1.weight, attn.c_attn.weight, mlp.c_fc.bias, ...
        config: n_head and layer_norm_epsilon.
        kept: this layer's part of a KV cache.
    """
    p, epsilon = parameters, config.layer_norm_epsilon
    attention = [p[f"attn.{name}"] for name in NAMES_OF_ATTENTION]
    y = layer_norm(x, p["ln_1.weight"], p["ln_1.bias"], epsilon)
    x = x + multi_head_attention(y, *attention, config.n_head, kept)
    y = layer_norm(x, p["ln_2.weight"], p["ln_2.bias"], epsilon)
    return x + mlp(y, *(p[f"mlp.{name}"] for name in NAMES_OF_MLP))
