"""GPT-2: from token ids to logits, top to bottom."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.block import attention_scale, block
from attnspec.reference.cache import Cache, KeyValue, empty_cache
from attnspec.reference.embedding import embed
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.masks import causal, displacement
from attnspec.reference.parameters import HEAD, POSITIONS, TOKENS, check_parameters
from attnspec.spec import (
    CausalAlignment,
    GPT2Config,
    ModelFeature,
    ModelImplementation,
)


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
        """Give, at each position, one logit per token that may follow.

        Args:
            input_ids: in [0, vocab); with a cache, the new tokens only.
            cache: what earlier calls kept.
            attention_mask: (batch, keys), 1 for a token and 0 for padding, the cached tokens
                first. What comes out at padding means nothing.
            position_ids: in [0, positions); None counts on from the cache's length.
            output_hidden_states: return them too.

        Returns:
            The logits (batch, length, vocab). With a cache, ``(logits, cache)``; with hidden
            states, ``(logits, states)``: the embeddings, then the residual stream after each block,
            the last one after the final LayerNorm. With both, ``(logits, cache, states)``.

        Raises:
            ValueError: for ids, positions or a mask that have no reading.

        Clauses:
            GPT-8, GPT-9, GPT-10, GPT-11, GPT-12, GPT-15, GPT-16, GPT-17
        """
        input_ids = input_ids.to(self.weights[TOKENS].device)
        past = 0 if cache is None else cache.length
        if position_ids is None:
            length = input_ids.shape[1]
            position_ids = torch.arange(past, past + length, device=input_ids.device)[None]
        mask = self._mask(input_ids, past, attention_mask)
        step = empty_cache(self.config.n_layer) if cache is None else cache
        kept: list[KeyValue] = []

        # EMBEDDINGS
        x = embed(input_ids, self.weights[TOKENS], self.weights[POSITIONS], position_ids)

        # BLOCKS
        states = [x]
        for layer in range(self.config.n_layer):
            attend = partial(self._attend, layer=layer, mask=mask, cache=step, kept=kept)
            x = block(x, self._of_block(layer), self.config, attention=attend)
            states.append(x)

        # HEAD
        states[-1] = x = layer_norm(
            x,
            self.weights["transformer.ln_f.weight"],
            self.weights["transformer.ln_f.bias"],
            epsilon=self.config.layer_norm_epsilon,
        )
        head = self.weights[TOKENS if self.config.tie_word_embeddings else HEAD]
        logits = torch.einsum("bsd,wd->bsw", x, head)

        result: list[Any] = [logits]
        if cache is not None:
            result.append(Cache(layers=tuple(kept), length=past + input_ids.shape[1]))
        if output_hidden_states:
            result.append(tuple(states))
        return tuple(result) if len(result) > 1 else logits

    def empty_cache(self) -> Cache:
        """Start a cache for this model."""
        return empty_cache(self.config.n_layer)

    def _of_block(self, layer: int) -> dict[str, torch.Tensor]:
        prefix = f"transformer.h.{layer}."
        own = {name: weight for name, weight in self.weights.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): weight for name, weight in own.items()}

    def _mask(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> Bool[torch.Tensor, "..."] | None:
        """Spell out who may read whom, or None where the plain causal flag says it all."""
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
        # Padding that stands first could read nothing. It reads itself, so that an attention whose
        # empty rows are NaN can be plugged in; no real token ever reads it.
        after = displacement(length, keys, CausalAlignment.LOWER_RIGHT, device=input_ids.device)
        return real | ((after == 0) & ~real.any(dim=-1, keepdim=True))

    def _attend(
        self,
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch heads queries d_head"],
        value: Float[torch.Tensor, "batch heads queries d_head"],
        *,
        layer: int,
        mask: Bool[torch.Tensor, "..."] | None,
        cache: Cache,
        kept: list[KeyValue],
    ) -> Float[torch.Tensor, "batch heads queries d_head"]:
        """Extend one layer's cache, and call the attention that was plugged in."""
        key, value = cache.append(layer, key, value)
        kept.append((key, value))
        out: torch.Tensor = self.attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=attention_scale(self.config, layer),
        )
        return out


def build(
    config: GPT2Config,
    state_dict: Mapping[str, torch.Tensor],
    *,
    attention: Callable[..., torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> GPT2:
    """Put a GPT-2 together.

    Args:
        config: sizes and switches.
        state_dict: parameters by Hugging Face's names with the prefix ``transformer.``; gradients
            flow to those that ask for them.
        attention: any function that meets the contract; None is the reference.
        dtype: what to compute in; None is the dtype of the parameters.

    Returns:
        A model to call.

    Raises:
        ValueError: for an activation that is not known.
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
"""The reference model and what it claims: everything."""
