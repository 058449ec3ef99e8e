"""The worst error of an encoder-decoder, element by element, stage by stage, from the data.

The enclosures of sums, linear maps, LayerNorm, activation and attention are those of
`models.bounds`, in the order of the configuration. Steps with a cache split the same sums, so that
one bound serves both. No constant is fitted.

Enclosed step by step, each branch multiplies the radius by three to ten, since the states and the
branch that is added to them err together: ten branches reached 10⁸ times the first error. Each
branch begins with states whose radius an affine form has sharpened (`operators.affine`), so that in
float32 the bound of six blocks on each side stays below a thousandth of the logits. Only the
gradients are still enclosed step by step: in float64 they are useful for two blocks on each side,
in float32 for few models of one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, add
from attnspec.conformance.models.bounds.forward import Normalized, layer_norm, linear
from attnspec.conformance.operators.affine import (
    Form,
    add_forms,
    attention_form,
    feed_forward_form,
    map_form,
    normalize_form,
    start,
)
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


class Tracked(NamedTuple):
    """A state, enclosed by steps, and its error as an affine form."""

    enclosure: Enclosure
    form: Form


def _tracked(branch: tuple[Branch, Form]) -> Tracked:
    """Return the state after a branch."""
    return Tracked(branch[0].result, branch[1])


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

        def encoder_block(name: str, x: Tracked) -> list[tuple[Branch, Form]]:
            heads = config.encoder_attention_heads
            own = self.attend(f"{name}.self_attn", x, None, heads, real)
            return [own, self.feed_forward(name, _tracked(own))]

        encoder, form = self.side(
            "encoder", source, real, config.encoder_layers, encoder_block, symbols=0
        )
        memory, length = Tracked(encoder.states[-1], form), target.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        real_targets = _mask(inputs, "decoder_attention_mask", target)
        visible = earlier & real_targets
        # padding before a target reads nothing, and no real token reads it: its states may be any
        visible = visible | ~visible.any(-1, keepdim=True)

        def decoder_block(name: str, x: Tracked) -> list[tuple[Branch, Form]]:
            heads = config.decoder_attention_heads
            own = self.attend(f"{name}.self_attn", x, None, heads, visible)
            cross = self.attend(f"{name}.encoder_attn", _tracked(own), memory, heads, real)
            return [own, cross, self.feed_forward(name, _tracked(cross))]

        layers = config.decoder_layers
        decoder, form = self.side(
            "decoder", target, real_targets, layers, decoder_block, symbols=len(form.parts)
        )
        table = self.weights["model.shared.weight"].double().mT
        bias = self.weights["final_logits_bias"][0]
        coarse = linear(decoder.states[-1], table, bias, self.arithmetic)
        logits = map_form(form, table, bias, self.arithmetic).enclosure(coarse)
        return Forward(encoder=encoder, decoder=decoder, logits=logits)

    def side(
        self,
        name: str,
        ids: torch.Tensor,
        real: torch.Tensor,
        layers: int,
        block: Callable[[str, Tracked], list[tuple[Branch, Form]]],
        *,
        symbols: int,
    ) -> tuple[Side, Form]:
        """Enclose a side, and return the form of its last state behind other symbols."""
        embedded, embedding_norm = self.embed(name, ids, real)
        x = Tracked(embedded, start(embedded, symbols))
        states, blocks, final = [embedded], [], None
        for layer in range(layers):
            found = block(f"model.{name}.layers.{layer}", x)
            blocks.append(tuple(branch for branch, _ in found))
            x = _tracked(found[-1])
            if self.config.final_norm and layer == layers - 1:
                final = self.norm(f"model.{name}.layer_norm", x.enclosure)
                form = self.norm_form(f"model.{name}.layer_norm", x.form).settle()
                x = Tracked(form.enclosure(final.result), form)
            states.append(x.enclosure)
        return Side(
            embedding_norm=embedding_norm, blocks=tuple(blocks), final=final, states=tuple(states)
        ), x.form

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

    def norm_form(self, name: str, x: Form) -> Form:
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return normalize_form(x, gain, bias, self.config.layer_norm_eps, self.arithmetic)

    def branch(
        self,
        name: str,
        x: Tracked,
        function: Callable[[Enclosure], Attention | FeedForward],
        form: Callable[[Form], Form],
    ) -> tuple[Branch, Form]:
        """Enclose a branch by steps and by an affine form, whose radii sharpen each other."""
        if self.config.norm_first:
            norm = self.norm(name, x.enclosure)
            inner = function(norm.result)
            coarse = add(x.enclosure, inner.out, self.arithmetic)
            moved = add_forms(x.form, form(self.norm_form(name, x.form)), self.arithmetic)
        else:
            inner = function(x.enclosure)
            norm = self.norm(name, add(x.enclosure, inner.out, self.arithmetic))
            coarse = norm.result
            moved = self.norm_form(name, add_forms(x.form, form(x.form), self.arithmetic))
        result = moved.enclosure(coarse)
        return Branch(name=name, inner=inner, norm=norm, result=result), moved.settle()

    def attend(
        self, name: str, x: Tracked, memory: Tracked | None, heads: int, visible: torch.Tensor
    ) -> tuple[Branch, Form]:
        """Enclose an attention to a memory; without one, to the states themselves."""
        query, key, value, out = (f"{name}.{part}_proj" for part in ("q", "k", "v", "out"))
        maps = query, key, value, out

        def inner(rows: Enclosure) -> Attention:
            other = rows if memory is None else memory.enclosure
            return enclose_attention(
                maps, self.weights, rows, other, heads, visible, self.arithmetic
            )

        def form(rows: Form) -> Form:
            other = rows if memory is None else memory.form
            return attention_form(maps, self.weights, rows, other, heads, visible, self.arithmetic)

        return self.branch(f"{name}_layer_norm", x, inner, form)

    def feed_forward(self, name: str, x: Tracked) -> tuple[Branch, Form]:
        maps, act = (f"{name}.fc1", f"{name}.fc2"), self.config.activation_function

        def inner(rows: Enclosure) -> FeedForward:
            return enclose_feed_forward(maps, self.weights, act, rows, self.arithmetic)

        def form(rows: Form) -> Form:
            return feed_forward_form(maps, self.weights, act, rows, self.arithmetic)

        return self.branch(f"{name}.final_layer_norm", x, inner, form)


def _mask(inputs: Mapping[str, torch.Tensor], name: str, ids: torch.Tensor) -> torch.Tensor:
    mask = inputs.get(name, torch.ones_like(ids))
    return mask.bool()[:, None, None]
