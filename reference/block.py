"""One block: attention, then an MLP, each added to the residual stream.

`block_with_cache` is `block` with one more line, between the projection and the attention.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.cache import Cache, KeyValue
from attnspec.reference.heads import merge_heads, multi_head_attention, project_heads
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.linear import linear
from attnspec.reference.mlp import mlp
from attnspec.spec import GPT2Config


def block(
    x: Float[torch.Tensor, "batch length d_model"],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
    *,
    attention: Callable[..., torch.Tensor],
) -> Float[torch.Tensor, "batch length d_model"]:
    r"""Add the output of attention to the residual stream, then the output of the MLP.

    .. math::
        h = x + \mathrm{Attention}(\mathrm{LayerNorm}(x)), \qquad
        y = h + \mathrm{MLP}(\mathrm{LayerNorm}(h))

    Args:
        x: the residual stream, dimensionless.
        weights: the block's parameters, under the names that follow ``transformer.h.{layer}.``.
        config: gives the number of heads, the activation and epsilon.
        attention: ``(query, key, value) -> out``, as `multi_head_attention` takes it.

    Returns:
        The residual stream after this block.

    Clauses:
        GPT-3, GPT-4, GPT-5

    Source:
        Radford et al. 2019, section 2.3: a LayerNorm before each sub-block
    """
    normalized = layer_norm(
        x, weights["ln_1.weight"], weights["ln_1.bias"], epsilon=config.layer_norm_epsilon
    )
    x = x + multi_head_attention(
        normalized,
        weights["attn.c_attn.weight"],
        weights["attn.c_attn.bias"],
        weights["attn.c_proj.weight"],
        weights["attn.c_proj.bias"],
        heads=config.n_head,
        attention=attention,
    )
    normalized = layer_norm(
        x, weights["ln_2.weight"], weights["ln_2.bias"], epsilon=config.layer_norm_epsilon
    )
    return x + mlp(
        normalized,
        weights["mlp.c_fc.weight"],
        weights["mlp.c_fc.bias"],
        weights["mlp.c_proj.weight"],
        weights["mlp.c_proj.bias"],
        activation=ACTIVATIONS[config.activation_function],
    )


def block_with_cache(
    x: Float[torch.Tensor, "batch length d_model"],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
    *,
    attention: Callable[..., torch.Tensor],
    cache: Cache,
    layer: int,
) -> tuple[Float[torch.Tensor, "batch length d_model"], KeyValue]:
    """Do what `block` does, with queries that also read the keys and values of earlier tokens.

    Args:
        x: the residual stream of the new tokens.
        weights: as in `block`.
        config: as in `block`.
        attention: as in `block`, on new queries and on keys and values of all tokens.
        cache: keys and values of earlier tokens; it is not changed.
        layer: the layer of this block, counted from 0.

    Returns:
        The residual stream of the new tokens after this block, and this layer's keys and values
        of all tokens.

    Raises:
        ValueError: for a cache of another batch, heads or channels.

    Clauses:
        GPT-16
    """
    normalized = layer_norm(
        x, weights["ln_1.weight"], weights["ln_1.bias"], epsilon=config.layer_norm_epsilon
    )
    query, key, value = project_heads(
        normalized,
        weights["attn.c_attn.weight"],
        weights["attn.c_attn.bias"],
        heads=config.n_head,
    )
    key, value = cache.append(layer, key, value)  # the line that `block` does not have
    x = x + linear(
        merge_heads(attention(query, key, value)),
        weights["attn.c_proj.weight"],
        weights["attn.c_proj.bias"],
    )
    normalized = layer_norm(
        x, weights["ln_2.weight"], weights["ln_2.bias"], epsilon=config.layer_norm_epsilon
    )
    x = x + mlp(
        normalized,
        weights["mlp.c_fc.weight"],
        weights["mlp.c_fc.bias"],
        weights["mlp.c_proj.weight"],
        weights["mlp.c_proj.bias"],
        activation=ACTIVATIONS[config.activation_function],
    )
    return x, (key, value)


def block_weights(weights: Mapping[str, torch.Tensor], layer: int) -> dict[str, torch.Tensor]:
    """Pick the parameters of one block.

    Args:
        weights: parameters by Hugging Face's names, with the prefix ``transformer.``.
        layer: counted from 0.

    Returns:
        The block's parameters under the names that follow ``transformer.h.{layer}.``.
    """
    prefix = f"transformer.h.{layer}."
    return {
        name.removeprefix(prefix): weight
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def attention_scale(config: GPT2Config, layer: int) -> float:
    r"""Compute the scale of one layer's scores.

    .. math:: s = \frac{1}{\sqrt{d_h}} \text{ if scale\_attn\_weights, else } 1, \qquad
        \text{divided by } \ell + 1 \text{ if scale\_attn\_by\_inverse\_layer\_idx}

    Args:
        config: gives the head's channels and both switches.
        layer: counted from 0: :math:`\ell`.

    Returns:
        A factor of the scores, in (0, 1].

    Clauses:
        GPT-6, GPT-7

    Source:
        Hugging Face transformers, `GPT2Config`; the layer-wise factor: Mistral (CRFM) 2021
    """
    scale = config.d_head**-0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale
