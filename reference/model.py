"""GPT-2: from token ids to logits, top to bottom.

`gpt2` is the definition. `gpt2_with_options` is the same three stages with a cache, padding,
hidden states and an attention of the caller's. `GPT2` is that under the contract of models.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.block import attention_scale, block, block_weights, block_with_cache
from attnspec.reference.cache import Cache, empty_cache
from attnspec.reference.embedding import embed
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.masks import causal, displacement
from attnspec.reference.parameters import TOKENS, check_parameters
from attnspec.spec import (
    CausalAlignment,
    GPT2Config,
    ModelFeature,
    ModelImplementation,
)


def gpt2(
    input_ids: Int[torch.Tensor, "batch length"],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
) -> Float[torch.Tensor, "batch length vocab"]:
    """Compute, at each position, one logit per token that may follow.

    Args:
        input_ids: in [0, vocab).
        weights: parameters by Hugging Face's names, with the prefix ``transformer.``.
        config: sizes and switches.

    Returns:
        The logits, in the dtype of the parameters. No logit depends on a later token.

    Raises:
        TypeError: for ids that are not integers.
        ValueError: for an id out of range, or more tokens than positions.

    Clauses:
        GPT-8, GPT-9, GPT-10, GPT-11, GPT-18

    Source:
        Radford et al. 2019, section 2.3
    """
    # EMBEDDINGS
    x = embed(input_ids, weights["transformer.wte.weight"], weights["transformer.wpe.weight"])

    # BLOCKS
    attention: Callable[..., Any] = partial(
        scaled_dot_product_attention, is_causal=True, compute_dtype=x.dtype
    )
    for layer in range(config.n_layer):
        attend = partial(attention, scale=attention_scale(config, layer))
        x = block(x, block_weights(weights, layer), config, attention=attend)

    # HEAD
    gain, shift = weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]
    x = layer_norm(x, gain, shift, epsilon=config.layer_norm_epsilon)
    head = "transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    return torch.einsum("bsd,wd->bsw", x, weights[head])


@dataclass(frozen=True, kw_only=True)
class Output:
    """The tensors that a GPT-2 computes on the way to its logits, and the logits.

    Attributes:
        logits: one per token that may follow, at each position.
        cache: keys and values of the tokens so far.
        hidden_states: the embeddings, then the residual stream after each block, the last one
            after the final LayerNorm.
    """

    logits: Float[torch.Tensor, "batch length vocab"]
    cache: Cache
    hidden_states: tuple[Float[torch.Tensor, "batch length d_model"], ...]


def gpt2_with_options(
    input_ids: Int[torch.Tensor, "batch length"],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
    *,
    attention: Callable[..., torch.Tensor],
    cache: Cache,
    attention_mask: Shaped[torch.Tensor, "batch keys"] | None = None,
    position_ids: Int[torch.Tensor, "#batch length"] | None = None,
) -> Output:
    """Do what `gpt2` does, after cached tokens, with padding, and with any attention.

    Args:
        input_ids: the new tokens, in [0, vocab).
        weights: as in `gpt2`.
        config: as in `gpt2`.
        attention: any function that meets the contract.
        cache: keys and values of earlier tokens; it is not changed.
        attention_mask: 1 for a token and 0 for padding, the cached tokens first. None is no
            padding.
        position_ids: in [0, positions); None counts on from the cache's length.

    Returns:
        The logits and hidden states of the new tokens, and a cache of all tokens. Those at padding
        are undefined.

    Raises:
        TypeError: for ids that are not integers.
        ValueError: for ids, positions or a mask that have no reading.

    Clauses:
        GPT-12, GPT-15, GPT-16, GPT-17
    """
    past, length = cache.length, input_ids.shape[1]
    if position_ids is None:
        position_ids = torch.arange(past, past + length, device=input_ids.device)[None]
    mask = token_mask(input_ids, past, attention_mask)

    # EMBEDDINGS
    tokens, positions = weights["transformer.wte.weight"], weights["transformer.wpe.weight"]
    x = embed(input_ids, tokens, positions, position_ids)

    # BLOCKS
    attention = partial(attention, attn_mask=mask, is_causal=mask is None)
    states, layers = [x], []
    for layer in range(config.n_layer):
        attend = partial(attention, scale=attention_scale(config, layer))
        own = block_weights(weights, layer)
        x, kept = block_with_cache(x, own, config, attention=attend, cache=cache, layer=layer)
        states.append(x)
        layers.append(kept)

    # HEAD
    gain, shift = weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]
    x = layer_norm(x, gain, shift, epsilon=config.layer_norm_epsilon)
    head = "transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    return Output(
        logits=torch.einsum("bsd,wd->bsw", x, weights[head]),
        cache=Cache(layers=tuple(layers), length=past + length),
        hidden_states=(*states[:-1], x),
    )


def token_mask(
    input_ids: Int[torch.Tensor, "batch length"],
    past: int,
    attention_mask: Shaped[torch.Tensor, "batch keys"] | None,
) -> Bool[torch.Tensor, "..."] | None:
    """Mark the tokens, cached or new, that each new token may read.

    Args:
        input_ids: the new tokens.
        past: the number of cached tokens.
        attention_mask: 1 for a token and 0 for padding, the cached tokens first. None is no
            padding.

    Returns:
        True where a new token may read a token, broadcastable to (batch, heads, queries, keys); or
        None if the plain causal flag says the same.

    Raises:
        ValueError: for a mask of another shape than (batch, past + length).

    Clauses:
        GPT-15, GPT-16, GPT-17, GPT-18
    """
    batch, length = input_ids.shape
    keys = past + length
    if attention_mask is None and past == 0:
        return None
    visible = causal(length, keys, CausalAlignment.LOWER_RIGHT, device=input_ids.device)
    if attention_mask is None:
        return visible
    if attention_mask.shape != (batch, keys):
        raise ValueError(
            f"attention_mask must have shape (batch, keys) = ({batch}, {keys}), the cached "
            f"tokens first, got {tuple(attention_mask.shape)}"
        )
    real = visible & attention_mask.to(torch.bool)[:, None, None, :]
    # Leading padding could read nothing. It reads itself, so that an attention whose
    # empty rows are NaN can be plugged in; no real token ever reads it.
    after = displacement(length, keys, CausalAlignment.LOWER_RIGHT, device=input_ids.device)
    return real | ((after == 0) & ~real.any(dim=-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class GPT2:
    """A GPT-2: a configuration, its parameters, and the attention that it calls.

    Attributes:
        config: sizes and switches.
        weights: parameters by Hugging Face's names, with the prefix ``transformer.``.
        attention: any function that meets the contract.
    """

    config: GPT2Config
    weights: Mapping[str, torch.Tensor]
    attention: Callable[..., torch.Tensor]

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        *,
        cache: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: Int[torch.Tensor, "#batch length"] | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Compute, at each position, one logit per token that may follow.

        Args:
            input_ids: in [0, vocab); with a cache, the new tokens only.
            cache: keys and values of earlier tokens; it is not changed.
            attention_mask: (batch, keys), 1 for a token and 0 for padding, the cached tokens
                first. Results at padding are undefined.
            position_ids: in [0, positions); None counts on from the cache's length.
            output_hidden_states: return them too.

        Returns:
            The logits (batch, length, vocab). With a cache, ``(logits, cache)``; with hidden
            states, ``(logits, states)``: the embeddings, then the residual stream after each block,
            the last one after the final LayerNorm. With both, ``(logits, cache, states)``.

        Raises:
            TypeError: for ids that are not integers.
            ValueError: for ids, positions or a mask that have no reading.

        Clauses:
            GPT-8, GPT-9, GPT-10, GPT-11, GPT-12, GPT-15, GPT-16, GPT-17
        """
        output = gpt2_with_options(
            input_ids.to(self.weights[TOKENS].device),
            self.weights,
            self.config,
            attention=self.attention,
            cache=self.empty_cache() if cache is None else cache,
            attention_mask=attention_mask,
            position_ids=position_ids,
        )
        result: list[Any] = [output.logits]
        if cache is not None:
            result.append(output.cache)
        if output_hidden_states:
            result.append(output.hidden_states)
        return tuple(result) if len(result) > 1 else output.logits

    def empty_cache(self) -> Cache:
        """Start a cache for this model."""
        return empty_cache(self.config.n_layer)


def build(
    config: GPT2Config,
    state_dict: Mapping[str, torch.Tensor],
    *,
    attention: Callable[..., torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> GPT2:
    """Build a GPT-2 from its parameters.

    Args:
        config: sizes and switches.
        state_dict: parameters by Hugging Face's names with the prefix ``transformer.``; gradients
            flow to those with `requires_grad`.
        attention: any function that meets the contract; None is the reference.
        dtype: the dtype to compute in; None is the dtype of the parameters.

    Returns:
        A model to call.

    Raises:
        ValueError: for an unknown activation.
        WeightsError: for a parameter that is missing, extra, misshapen or of a wrong dtype.
    """
    if config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"activation_function must be one of {', '.join(ACTIVATIONS)}, "
            f"got {config.activation_function}"
        )
    weights = check_parameters(config, state_dict, dtype=dtype)
    if attention is None:
        compute_dtype = weights[TOKENS].dtype
        attention = cast(
            Callable[..., torch.Tensor],
            partial(scaled_dot_product_attention, compute_dtype=compute_dtype),
        )
    return GPT2(config=config, weights=weights, attention=attention)


MODEL = ModelImplementation(
    name="reference",
    build=build,
    features=frozenset(ModelFeature),
    dtypes=(torch.float64, torch.float32),
)
"""The reference as an implementation of GPT-2, which claims every feature."""
