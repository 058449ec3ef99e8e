"""One block: attention, then an MLP, each added to the residual stream."""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.heads import multi_head_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.mlp import mlp
from attnspec.spec import GPT2Config


def block(
    x: Float[torch.Tensor, "batch length d_model"],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
    *,
    attention: Callable[..., torch.Tensor],
) -> Float[torch.Tensor, "batch length d_model"]:
    r"""Add what attention finds, then what the MLP makes of it.

    .. math::
        h = x + \mathrm{Attention}(\mathrm{LayerNorm}(x)), \qquad
        y = h + \mathrm{MLP}(\mathrm{LayerNorm}(h))

    Args:
        x: the residual stream.
        weights: the block's own, under the names that follow ``transformer.h.{layer}.``.
        config: gives the number of heads, the activation and epsilon.
        attention: ``(query, key, value) -> out``, as `multi_head_attention` takes it.

    Returns:
        The residual stream after this block.

    Clauses:
        GPT-3, GPT-4, GPT-5

    Source:
        Radford et al. 2019, section 2.3: the LayerNorm stands before each sub-block
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


def attention_scale(config: GPT2Config, layer: int) -> float:
    r"""Give the scale of one layer's scores.

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
