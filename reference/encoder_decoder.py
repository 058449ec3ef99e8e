"""The encoder-decoder of 2017: from a source text to the logits of the next target token."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.attention import attention
from attnspec.reference.encoder import Weights, linear, norm
from attnspec.reference.padding import token_positions
from attnspec.spec.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderProfile,
    Positions,
    Sinusoids,
)

State = Float[torch.Tensor, "batch length d_model"]
Heads = Float[torch.Tensor, "batch heads length d_head"]

BART_OFFSET = 2
"""Rows of BART's tables of positions before that of the first position."""


def frequencies(d_model: int) -> Float[torch.Tensor, " pairs"]:
    r"""Return the angle by which each pair of channels turns from one position to the next.

    .. math::
        \omega_i = 10000^{-2i/d}

    Args:
        d_model: channels; even.

    Clauses:
        CRS-2, CRS-3
    """
    pairs = torch.arange(d_model // 2, dtype=torch.float64)
    return 10_000.0 ** (-2 * pairs / d_model)


def sinusoids(
    positions: Int[torch.Tensor, "*batch length"],
    d_model: int,
    order: Sinusoids = Sinusoids.INTERLEAVED,
) -> Float[torch.Tensor, "*batch length d_model"]:
    r"""Return the sinusoidal positions, in float64.

    .. math::
        P_{p,2i} = \sin(p\,\omega_i), \qquad P_{p,2i+1} = \cos(p\,\omega_i)

    Args:
        positions: at least 0.
        d_model: channels; even.
        order: of the channels.

    Clauses:
        CRS-2

    Source:
        Vaswani et al. 2017, section 3.5
    """
    angles = positions[..., None] * frequencies(d_model)
    if order is Sinusoids.HALVES:
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def rotate_positions(
    rows: Float[torch.Tensor, "length d_model"],
    shift: int,
    order: Sinusoids = Sinusoids.INTERLEAVED,
) -> Float[torch.Tensor, "length d_model"]:
    r"""Turn each pair of sine and cosine by the angle of a shift.

    .. math::
        P_{p+k,2i} = P_{p,2i}\cos k\omega_i + P_{p,2i+1}\sin k\omega_i, \qquad
        P_{p+k,2i+1} = P_{p,2i+1}\cos k\omega_i - P_{p,2i}\sin k\omega_i

    Args:
        rows: sinusoidal positions.
        shift: k; of either sign.
        order: of the channels.

    Clauses:
        CRS-3

    Source:
        Vaswani et al. 2017, section 3.5
    """
    pairs = rows.shape[-1] // 2
    axis, shape = (-2, (2, pairs)) if order is Sinusoids.HALVES else (-1, (pairs, 2))
    sine, cosine = rows.unflatten(-1, shape).unbind(axis)
    angles = shift * frequencies(rows.shape[-1])
    turned_sine = sine * angles.cos() + cosine * angles.sin()
    turned_cosine = cosine * angles.cos() - sine * angles.sin()
    return torch.stack([turned_sine, turned_cosine], dim=axis).flatten(-2)


def embed(
    config: EncoderDecoderConfig,
    weights: Weights,
    side: str,
    ids: Int[torch.Tensor, "batch length"],
    positions: Int[torch.Tensor, "batch length"] | None = None,
    *,
    order: Sinusoids = Sinusoids.INTERLEAVED,
) -> State:
    """Add scaled token rows and positions.

    Args:
        config: of the model.
        weights: of the model.
        side: `encoder` or `decoder`; both share the token table.
        ids: in [0, vocab_size).
        positions: of the ids; from 0 on if they are not given.
        order: of the channels of sinusoidal positions.

    Clauses:
        CRS-1, CRS-2

    Source:
        Vaswani et al. 2017, section 3.4
    """
    rows = weights["model.shared.weight"][ids]
    if config.scale_embedding:
        rows = rows * math.sqrt(config.d_model)
    if positions is None:
        positions = torch.arange(ids.shape[1]).expand(ids.shape)
    if config.position_embedding is Positions.SINUSOIDAL:
        return rows + sinusoids(positions, config.d_model, order).to(rows.dtype)
    table = weights[f"model.{side}.embed_positions.weight"]
    rows = rows + table[positions + BART_OFFSET]
    return norm(rows, weights, f"model.{side}.layernorm_embedding", config.layer_norm_eps)


def keys_and_values(weights: Weights, name: str, states: State, heads: int) -> tuple[Heads, Heads]:
    """Return the keys and the values of an attention, by heads.

    Args:
        weights: of the model.
        name: of the attention.
        states: for cross-attention, those of the encoder.
        heads: of the attention.

    Clauses:
        CRS-6, CRS-18
    """
    return split(linear(states, weights, f"{name}.k_proj"), heads), split(
        linear(states, weights, f"{name}.v_proj"), heads
    )


def split(x: State, heads: int) -> Heads:
    """Return the heads of projected states; each is a run of channels.

    Args:
        x: projected states.
        heads: divide the channels.

    Clauses:
        CRS-13
    """
    parts: torch.Tensor = x.unflatten(-1, (heads, -1))
    return parts.transpose(1, 2)


def attend(
    weights: Weights,
    name: str,
    x: State,
    keys: Heads,
    values: Heads,
    visible: Bool[torch.Tensor, "batch 1 queries keys"],
) -> State:
    """Attend from states to keys and values, which may be of another text.

    Args:
        weights: of the model.
        name: of the attention.
        x: the states that make the queries.
        keys: by heads.
        values: by heads.
        visible: true if a query may read a key.

    Clauses:
        CRS-5, CRS-6, CRS-13

    Source:
        Vaswani et al. 2017, section 3.2.3
    """
    heads, d_head = keys.shape[1], keys.shape[3]
    query = split(linear(x, weights, f"{name}.q_proj"), heads)
    mixed = attention(query, keys, values, visible, scale=d_head**-0.5)
    return linear(mixed.transpose(1, 2).flatten(-2), weights, f"{name}.out_proj")


def add_branch(
    config: EncoderDecoderConfig,
    weights: Weights,
    name: str,
    x: State,
    branch: Callable[[State], State],
) -> State:
    r"""Add a branch to the states, with the LayerNorm of a name after the sum or before the branch.

    .. math::
        \mathrm{LN}(x + f(x)) \quad\text{or}\quad x + f(\mathrm{LN}(x))

    Args:
        config: of the model.
        weights: of the model.
        name: of the LayerNorm.
        x: the states.
        branch: attention or feed-forward network.

    Clauses:
        CRS-4, CRS-5, CRS-15, CRS-16

    Source:
        Vaswani et al. 2017, section 3.1
    """
    epsilon = config.layer_norm_eps
    if config.norm_first:
        return x + branch(norm(x, weights, name, epsilon))
    return norm(x + branch(x), weights, name, epsilon)


def feed_forward(config: EncoderDecoderConfig, weights: Weights, name: str, x: State) -> State:
    """Apply two linear maps with the activation function between them.

    Args:
        config: of the model.
        weights: of the model.
        name: of the block.
        x: the states.

    Clauses:
        CRS-14
    """
    inner = ACTIVATIONS[config.activation_function](linear(x, weights, f"{name}.fc1"))
    return linear(inner, weights, f"{name}.fc2")


def encoder_block(
    config: EncoderDecoderConfig,
    weights: Weights,
    name: str,
    x: State,
    visible: Bool[torch.Tensor, "batch 1 1 source"],
) -> State:
    """Apply a block of the encoder: self-attention without a causal mask, feed-forward network.

    Args:
        config: of the model.
        weights: of the model.
        name: of the block.
        x: the states.
        visible: true for real tokens.

    Clauses:
        CRS-4
    """

    def self_attention(rows: State) -> State:
        part, heads = f"{name}.self_attn", config.encoder_attention_heads
        return attend(weights, part, rows, *keys_and_values(weights, part, rows, heads), visible)

    def mlp(rows: State) -> State:
        return feed_forward(config, weights, name, rows)

    x = add_branch(config, weights, f"{name}.self_attn_layer_norm", x, self_attention)
    return add_branch(config, weights, f"{name}.final_layer_norm", x, mlp)


def decoder_block(
    config: EncoderDecoderConfig,
    weights: Weights,
    name: str,
    x: State,
    past: tuple[Heads, Heads],
    cross: tuple[Heads, Heads],
    visible: Bool[torch.Tensor, "batch 1 queries target"],
    source_visible: Bool[torch.Tensor, "batch 1 1 source"],
) -> tuple[State, tuple[Heads, Heads]]:
    """Apply a block of the decoder: self-attention, cross-attention, feed-forward network.

    Args:
        config: of the model.
        weights: of the model.
        name: of the block.
        x: the states of the target tokens of this call.
        past: keys and values of the self-attention, of earlier calls.
        cross: keys and values of the cross-attention, made of the encoder's states.
        visible: true if a target token may read another.
        source_visible: true for real tokens of the source.

    Returns:
        The states, and the keys and values of all target tokens so far.

    Clauses:
        CRS-5 to CRS-8, CRS-17

    Source:
        Vaswani et al. 2017, figure 1
    """
    kept: list[torch.Tensor] = []

    def self_attention(rows: State) -> State:
        part, heads = f"{name}.self_attn", config.decoder_attention_heads
        new = keys_and_values(weights, part, rows, heads)
        kept.extend(torch.cat(pair, dim=2) for pair in zip(past, new, strict=True))
        return attend(weights, part, rows, kept[0], kept[1], visible)

    def cross_attention(rows: State) -> State:
        return attend(weights, f"{name}.encoder_attn", rows, *cross, source_visible)

    def mlp(rows: State) -> State:
        return feed_forward(config, weights, name, rows)

    x = add_branch(config, weights, f"{name}.self_attn_layer_norm", x, self_attention)
    x = add_branch(config, weights, f"{name}.encoder_attn_layer_norm", x, cross_attention)
    x = add_branch(config, weights, f"{name}.final_layer_norm", x, mlp)
    return x, (kept[0], kept[1])


def next_token_logits(weights: Weights, states: State) -> Float[torch.Tensor, "batch target vocab"]:
    """Return the logits of the last states of the decoder: the token table, and a bias.

    Args:
        weights: of the model.
        states: of the last block.

    Clauses:
        CRS-12

    Source:
        Vaswani et al. 2017, section 3.4
    """
    return states @ weights["model.shared.weight"].mT + weights["final_logits_bias"]


@dataclass(frozen=True)
class Cache:
    """The keys and values that a decoder keeps from one call to the next.

    Attributes:
        cross: of each block, keys and values of the source; they never change.
        source_visible: true for real tokens of the source.
        past: of each block, keys and values of the target tokens so far.
    """

    cross: tuple[tuple[Heads, Heads], ...]
    source_visible: Bool[torch.Tensor, "batch 1 1 source"]
    past: tuple[tuple[Heads, Heads], ...]

    @property
    def length(self) -> int:
        """Target tokens so far."""
        return self.past[0][0].shape[2]


@dataclass(frozen=True)
class Transformer:
    """An encoder-decoder.

    Attributes:
        config: its sizes.
        weights: its parameters, by Hugging Face's names.
        profile: the order of the channels of sinusoidal positions, and the positions of tokens
            behind padding.
    """

    config: EncoderDecoderConfig
    weights: Weights
    profile: EncoderDecoderProfile = field(default_factory=EncoderDecoderProfile)

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        decoder_input_ids: Int[torch.Tensor, "batch target"],
        *,
        attention_mask: Int[torch.Tensor, "batch source"] | None = None,
        decoder_attention_mask: Int[torch.Tensor, "batch target"] | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        """Return the logits of all target positions, and hidden states if they are requested."""
        encoded = self.encode(input_ids, attention_mask)
        cache = self.cache(encoded[-1], input_ids, attention_mask)
        decoded, _ = self.decode(decoder_input_ids, cache, decoder_attention_mask)
        logits = next_token_logits(self.weights, decoded[-1])
        return (logits, tuple(encoded), tuple(decoded)) if output_hidden_states else logits

    def start(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        attention_mask: Int[torch.Tensor, "batch source"] | None = None,
    ) -> Cache:
        """Run the encoder, and compute the keys and values of every cross-attention once."""
        return self.cache(self.encode(input_ids, attention_mask)[-1], input_ids, attention_mask)

    def step(
        self, decoder_input_ids: Int[torch.Tensor, "batch next"], cache: Cache
    ) -> tuple[Float[torch.Tensor, "batch next vocab"], Cache]:
        """Return the logits of the next target tokens, and the cache that holds them too."""
        decoded, cache = self.decode(decoder_input_ids, cache)
        return next_token_logits(self.weights, decoded[-1]), cache

    def encode(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        attention_mask: Int[torch.Tensor, "batch source"] | None = None,
    ) -> list[torch.Tensor]:
        """Return the embeddings of the source, and the result of each block."""
        visible = real_tokens(input_ids, attention_mask)
        states = [self.embed("encoder", input_ids, attention_mask)]
        for layer in range(self.config.encoder_layers):
            name = f"model.encoder.layers.{layer}"
            states.append(encoder_block(self.config, self.weights, name, states[-1], visible))
        return self._normed("encoder", states)

    def cache(
        self,
        encoded: State,
        input_ids: Int[torch.Tensor, "batch source"],
        attention_mask: Int[torch.Tensor, "batch source"] | None = None,
    ) -> Cache:
        """Return the cache before the first target token."""
        heads = self.config.decoder_attention_heads
        names = [f"model.decoder.layers.{i}" for i in range(self.config.decoder_layers)]
        empty = encoded.new_zeros(len(encoded), heads, 0, self.config.d_model // heads)
        return Cache(
            cross=tuple(
                keys_and_values(self.weights, f"{name}.encoder_attn", encoded, heads)
                for name in names
            ),
            source_visible=real_tokens(input_ids, attention_mask),
            past=tuple((empty, empty) for _ in names),
        )

    def decode(
        self,
        ids: Int[torch.Tensor, "batch next"],
        cache: Cache,
        attention_mask: Int[torch.Tensor, "batch next"] | None = None,
    ) -> tuple[list[torch.Tensor], Cache]:
        """Return the embeddings of target tokens, the result of each block, and the new cache."""
        before, count = cache.length, ids.shape[1]
        earlier = torch.ones(count, before + count, dtype=torch.bool).tril(before)
        visible = earlier.expand(len(ids), 1, -1, -1)
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None, None]
        states = [self.embed("decoder", ids, attention_mask, before)]
        past = []
        for layer in range(self.config.decoder_layers):
            state, kept = decoder_block(
                self.config,
                self.weights,
                f"model.decoder.layers.{layer}",
                states[-1],
                cache.past[layer],
                cache.cross[layer],
                visible,
                cache.source_visible,
            )
            states.append(state)
            past.append(kept)
        return self._normed("decoder", states), replace(cache, past=tuple(past))

    def embed(
        self,
        side: str,
        ids: Int[torch.Tensor, "batch length"],
        attention_mask: Int[torch.Tensor, "batch length"] | None,
        before: int = 0,
    ) -> State:
        """Return the embeddings of a side, with the positions that are declared."""
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask
        positions = before + token_positions(mask, self.profile.positions)
        order = self.profile.sinusoids
        return embed(self.config, self.weights, side, ids, positions, order=order)

    def _normed(self, side: str, states: list[torch.Tensor]) -> list[torch.Tensor]:
        """Apply the final LayerNorm of a side to its last state, if there is one."""
        if self.config.final_norm:
            name = f"model.{side}.layer_norm"
            states[-1] = norm(states[-1], self.weights, name, self.config.layer_norm_eps)
        return states


def real_tokens(
    ids: Int[torch.Tensor, "batch length"],
    attention_mask: Int[torch.Tensor, "batch length"] | None,
) -> Bool[torch.Tensor, "batch 1 1 length"]:
    """Return true for real tokens, which are all of them without a mask.

    Args:
        ids: of the text.
        attention_mask: 1 for real tokens and 0 for padding.

    Clauses:
        CRS-9, CRS-10
    """
    mask = torch.ones_like(ids) if attention_mask is None else attention_mask
    return mask.bool()[:, None, None]


def build(
    config: EncoderDecoderConfig,
    state_dict: Weights,
    profile: EncoderDecoderProfile | None = None,
) -> Transformer:
    """Build an encoder-decoder; a missing parameter is named when it is used.

    Args:
        config: the sizes.
        state_dict: parameters by Hugging Face's names; their dtype is the one to compute in.
        profile: the order of the channels of sinusoidal positions, and the positions of tokens
            behind padding.
    """
    return Transformer(config, dict(state_dict), profile or EncoderDecoderProfile())
