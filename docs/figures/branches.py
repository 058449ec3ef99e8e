"""The parts that a GPT-2 adds to its residual stream, one by one."""

from collections.abc import Mapping
from functools import partial

import torch

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.block import attention_scale, block_weights
from attnspec.reference.embedding import embed
from attnspec.reference.heads import multi_head_attention
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.mlp import mlp
from attnspec.spec import GPT2Config


def stream_parts(
    config: GPT2Config, weights: Mapping[str, torch.Tensor], ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the terms of the last state before its LayerNorm, each (length, d_model)."""
    tokens = weights["transformer.wte.weight"]
    x = embed(ids, tokens, weights["transformer.wpe.weight"])
    parts = {"embedding": tokens[ids[0]], "position": x[0] - tokens[ids[0]]}
    for layer in range(config.n_layer):
        own = block_weights(weights, layer)
        scale = attention_scale(config, layer)
        attend = partial(scaled_dot_product_attention, is_causal=True, scale=scale)
        branches = {
            "attention": ("attn.c_attn", "attn.c_proj", "ln_1"),
            "MLP": ("mlp.c_fc", "mlp.c_proj", "ln_2"),
        }
        for name, (first, second, norm) in branches.items():
            maps = [
                own[f"{each}.{kind}"] for each in (first, second) for kind in ("weight", "bias")
            ]
            gain, shift = own[f"{norm}.weight"], own[f"{norm}.bias"]
            normal = layer_norm(x, gain, shift, epsilon=config.layer_norm_epsilon)
            if name == "attention":
                change = multi_head_attention(normal, *maps, heads=config.n_head, attention=attend)
            else:
                change = mlp(normal, *maps, activation=ACTIVATIONS[config.activation_function])
            parts[f"{name} {layer}"] = change[0]
            x = x + change
    return parts
