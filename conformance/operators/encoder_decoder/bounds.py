"""The worst error of an encoder-decoder, element by element, stage by stage, from the data.

The enclosures of sums, linear maps, LayerNorm, activation and attention are those of
`models.bounds`, in the order of the configuration. Steps with a cache split the same sums, so that
one bound serves both. No constant is fitted.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, add
from attnspec.conformance.models.bounds.forward import Normalized, layer_norm, linear
from attnspec.conformance.operators.branches import (
    Attention,
    FeedForward,
    Weights,
    enclose_attention,
    enclose_feed_forward,
)
from attnspec.reference.encoder_decoder import frequencies, sinusoids
from attnspec.reference.padding import token_positions
from attnspec.spec.encoder_decoder import (
    EncoderDecoderConfig,
    EncoderDecoderProfile,
    Positions,
    Sinusoids,
)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A branch of a block with its LayerNorm, for the reverse pass.

    Attributes:
        name: of the LayerNorm.
        inner: the branch.
        norm: before the branch, or after the sum.
        result: the states after it.
    """

    name: str
    inner: Attention | FeedForward
    norm: Normalized
    result: Enclosure


@dataclass(frozen=True, kw_only=True)
class Side:
    """The enclosures of the encoder or the decoder.

    Attributes:
        embedding_norm: of learned positions.
        blocks: the branches of each block.
        final: the LayerNorm of the last state, if there is one.
        states: the embeddings, and the result of each block, the last of which is normalized.
    """

    embedding_norm: Normalized | None
    blocks: tuple[tuple[Branch, ...], ...]
    final: Normalized | None
    states: tuple[Enclosure, ...]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The enclosures of one call.

    Attributes:
        encoder: of the source.
        decoder: of the target.
        logits: the logits.
    """

    encoder: Side
    decoder: Side
    logits: Enclosure

    @property
    def results(self) -> dict[str, Enclosure]:
        """The results of a call by their names."""
        sides = {"encoder": self.encoder, "decoder": self.decoder}
        states = {
            f"{name} state {place}": each
            for name, side in sides.items()
            for place, each in enumerate(side.states)
        }
        return {**states, "logits": self.logits}


def forward(
    config: EncoderDecoderConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    profile: EncoderDecoderProfile,
    arithmetic: Arithmetic,
) -> Forward:
    """Enclose every step of a call, whose parameters are exact as stored.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids of both sides, and masks if there are any.
        profile: the order of sinusoidal positions, and the positions of tokens behind padding.
        arithmetic: the roundings.
    """
    return _Model(config, weights, profile, arithmetic).forward(inputs)


def enclose_sinusoids(
    positions: torch.Tensor, d_model: int, order: Sinusoids, arithmetic: Arithmetic
) -> Enclosure:
    """Enclose sinusoidal positions, computed in any of the usual ways.

    The frequency is exp(−t), t = (2i/d) ln 10000, or the power of 10000. The exponent has six
    roundings at most (the constant, 2i/d, product, quotient), so that the frequency errs by 6tu
    relative, and by cu and two roundings of its own; the angle θ is rounded once more. Hence the
    angle errs by (6t + c + 3)uθ, which sine and cosine carry with a slope of 1 at most, and they
    err by cu relative themselves.
    """
    value = sinusoids(positions, d_model, order)
    omega = frequencies(d_model)
    exponent = -omega.log()
    angle = positions[..., None].double() * omega
    units = (6 * exponent + arithmetic.elementary + 3) * angle
    pairs = (units, units)
    radius = (
        torch.cat(pairs, -1)
        if order is Sinusoids.HALVES
        else torch.stack(pairs, dim=-1).flatten(-2)
    )
    return Enclosure(
        value, arithmetic.u * (radius + arithmetic.elementary * value.abs()) + arithmetic.floor
    )


class _Model:
    """One model and its arithmetic."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        weights: Weights,
        profile: EncoderDecoderProfile,
        arithmetic: Arithmetic,
    ) -> None:
        self.config, self.weights = config, weights
        self.profile, self.arithmetic = profile, arithmetic

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> Forward:
        source, target = inputs["input_ids"], inputs["decoder_input_ids"]
        real = _mask(inputs, "attention_mask", source)
        config = self.config

        def encoder_block(name: str, x: Enclosure) -> list[Branch]:
            heads = config.encoder_attention_heads
            own = self.attend(f"{name}.self_attn", x, None, heads, real)
            return [own, self.feed_forward(name, own.result)]

        encoder = self.side("encoder", source, real, config.encoder_layers, encoder_block)
        memory, length = encoder.states[-1], target.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        real_targets = _mask(inputs, "decoder_attention_mask", target)
        visible = earlier & real_targets
        # padding before a target reads nothing, and no real token reads it: its states may be any
        visible = visible | ~visible.any(-1, keepdim=True)

        def decoder_block(name: str, x: Enclosure) -> list[Branch]:
            heads = config.decoder_attention_heads
            own = self.attend(f"{name}.self_attn", x, None, heads, visible)
            cross = self.attend(f"{name}.encoder_attn", own.result, memory, heads, real)
            return [own, cross, self.feed_forward(name, cross.result)]

        layers = config.decoder_layers
        decoder = self.side("decoder", target, real_targets, layers, decoder_block)
        table = self.weights["model.shared.weight"].double().mT
        bias = self.weights["final_logits_bias"][0]
        logits = linear(decoder.states[-1], table, bias, self.arithmetic)
        return Forward(encoder=encoder, decoder=decoder, logits=logits)

    def side(
        self,
        name: str,
        ids: torch.Tensor,
        real: torch.Tensor,
        layers: int,
        block: Callable[[str, Enclosure], list[Branch]],
    ) -> Side:
        x, embedding_norm = self.embed(name, ids, real)
        states, blocks, final = [x], [], None
        for layer in range(layers):
            branches = tuple(block(f"model.{name}.layers.{layer}", x))
            x = branches[-1].result
            blocks.append(branches)
            if self.config.final_norm and layer == layers - 1:
                final = self.norm(f"model.{name}.layer_norm", x)
                x = final.result
            states.append(x)
        return Side(
            embedding_norm=embedding_norm, blocks=tuple(blocks), final=final, states=tuple(states)
        )

    def embed(
        self, side: str, ids: torch.Tensor, real: torch.Tensor
    ) -> tuple[Enclosure, Normalized | None]:
        """Enclose the embeddings: the scaled row has γ₂ of root and product."""
        config = self.config
        rows = self.weights["model.shared.weight"][ids].double()
        tokens = Enclosure.exact(rows)
        if config.scale_embedding:
            scaled = rows * math.sqrt(config.d_model)
            rounding = self.arithmetic.gamma(2) * scaled.abs() + self.arithmetic.floor
            tokens = Enclosure(scaled, rounding)
        places = token_positions(real[:, 0, 0], self.profile.positions)
        if config.position_embedding is Positions.SINUSOIDAL:
            order = self.profile.sinusoids
            added = enclose_sinusoids(places, config.d_model, order, self.arithmetic)
        else:
            table = self.weights[f"model.{side}.embed_positions.weight"]
            added = Enclosure.exact(table[places + 2])
        total = add(tokens, added, self.arithmetic)
        if config.position_embedding is Positions.SINUSOIDAL:
            return total, None
        normed = self.norm(f"model.{side}.layernorm_embedding", total)
        return normed.result, normed

    def norm(self, name: str, x: Enclosure) -> Normalized:
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, gain, bias, self.config.layer_norm_eps, self.arithmetic)

    def branch(
        self, name: str, x: Enclosure, function: Callable[[Enclosure], Attention | FeedForward]
    ) -> Branch:
        if self.config.norm_first:
            norm = self.norm(name, x)
            inner = function(norm.result)
            result = add(x, inner.out, self.arithmetic)
            return Branch(name=name, inner=inner, norm=norm, result=result)
        inner = function(x)
        norm = self.norm(name, add(x, inner.out, self.arithmetic))
        return Branch(name=name, inner=inner, norm=norm, result=norm.result)

    def attend(
        self, name: str, x: Enclosure, memory: Enclosure | None, heads: int, visible: torch.Tensor
    ) -> Branch:
        """Enclose an attention to a memory; without one, to the states themselves."""
        query, key, value, out = (f"{name}.{part}_proj" for part in ("q", "k", "v", "out"))

        def inner(rows: Enclosure) -> Attention:
            return enclose_attention(
                (query, key, value, out),
                self.weights,
                rows,
                rows if memory is None else memory,
                heads,
                visible,
                self.arithmetic,
            )

        return self.branch(f"{name}_layer_norm", x, inner)

    def feed_forward(self, name: str, x: Enclosure) -> Branch:
        maps, act = (f"{name}.fc1", f"{name}.fc2"), self.config.activation_function

        def inner(rows: Enclosure) -> FeedForward:
            return enclose_feed_forward(maps, self.weights, act, rows, self.arithmetic)

        return self.branch(f"{name}.final_layer_norm", x, inner)


def _mask(inputs: Mapping[str, torch.Tensor], name: str, ids: torch.Tensor) -> torch.Tensor:
    mask = inputs.get(name, torch.ones_like(ids))
    return mask.bool()[:, None, None]
