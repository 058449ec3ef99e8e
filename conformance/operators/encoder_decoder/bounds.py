"""The worst error of an encoder-decoder, element by element, stage by stage, from the data.

The enclosures of sums, linear maps, LayerNorm, activation and attention are those of
`models.bounds`, in the order of the configuration. Steps with a cache split the same sums, so that
one bound serves both. No constant is fitted.
"""

import math
from collections.abc import Callable, Mapping

import torch

from attnspec.conformance.models.bounds.activation import activation
from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, add, merge_heads
from attnspec.conformance.models.bounds.forward import attention, layer_norm, linear
from attnspec.reference.encoder_decoder import frequencies, sinusoids
from attnspec.spec.encoder_decoder import EncoderDecoderConfig, Positions, Sinusoids

Weights = Mapping[str, torch.Tensor]


def forward(
    config: EncoderDecoderConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    order: Sinusoids,
    arithmetic: Arithmetic,
) -> dict[str, Enclosure]:
    """Enclose every result of a call by its name, whose parameters are exact as stored.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids of both sides, and masks if there are any.
        order: of the channels of sinusoidal positions.
        arithmetic: the roundings.
    """
    return _Model(config, weights, order, arithmetic).results(inputs)


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
    angle = positions[:, None].double() * omega
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
        order: Sinusoids,
        arithmetic: Arithmetic,
    ) -> None:
        self.config, self.weights = config, weights
        self.order, self.arithmetic = order, arithmetic

    def results(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Enclosure]:
        source, target = inputs["input_ids"], inputs["decoder_input_ids"]
        real = _mask(inputs, "attention_mask", source)
        x = self.embed("encoder", source)
        result = {"encoder state 0": x}
        for layer in range(self.config.encoder_layers):
            x = self.encoder_block(f"model.encoder.layers.{layer}", x, real)
            if layer == self.config.encoder_layers - 1:
                x = self.final("encoder", x)
            result[f"encoder state {layer + 1}"] = x
        memory, x = x, self.embed("decoder", target)
        result["decoder state 0"] = x
        length = target.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        visible = earlier & _mask(inputs, "decoder_attention_mask", target)
        for layer in range(self.config.decoder_layers):
            x = self.decoder_block(f"model.decoder.layers.{layer}", x, memory, visible, real)
            if layer == self.config.decoder_layers - 1:
                x = self.final("decoder", x)
            result[f"decoder state {layer + 1}"] = x
        table = self.weights["model.shared.weight"].double().mT
        bias = self.weights["final_logits_bias"][0]
        result["logits"] = linear(x, table, bias, self.arithmetic)
        return result

    def embed(self, side: str, ids: torch.Tensor) -> Enclosure:
        """Enclose the embeddings: the scaled row has γ₂ of root and product."""
        config = self.config
        rows = self.weights["model.shared.weight"][ids].double()
        tokens = Enclosure.exact(rows)
        if config.scale_embedding:
            scaled = rows * math.sqrt(config.d_model)
            rounding = self.arithmetic.gamma(2) * scaled.abs() + self.arithmetic.floor
            tokens = Enclosure(scaled, rounding)
        places = torch.arange(ids.shape[1])
        if config.position_embedding is Positions.SINUSOIDAL:
            added = enclose_sinusoids(places, config.d_model, self.order, self.arithmetic)
        else:
            table = self.weights[f"model.{side}.embed_positions.weight"]
            added = Enclosure.exact(table[places + 2])
        total = add(tokens, added.map(lambda x: x.expand(len(ids), -1, -1)), self.arithmetic)
        if config.position_embedding is Positions.SINUSOIDAL:
            return total
        return self.norm(f"model.{side}.layernorm_embedding", total)

    def norm(self, name: str, x: Enclosure) -> Enclosure:
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, gain, bias, self.config.layer_norm_eps, self.arithmetic).result

    def final(self, side: str, x: Enclosure) -> Enclosure:
        return self.norm(f"model.{side}.layer_norm", x) if self.config.final_norm else x

    def linear(self, name: str, x: Enclosure) -> Enclosure:
        """Enclose a linear map that is stored output-major."""
        matrix = self.weights[f"{name}.weight"].double().mT
        return linear(x, matrix, self.weights[f"{name}.bias"], self.arithmetic)

    def branch(
        self, name: str, x: Enclosure, function: Callable[[Enclosure], Enclosure]
    ) -> Enclosure:
        if self.config.norm_first:
            return add(x, function(self.norm(name, x)), self.arithmetic)
        return self.norm(name, add(x, function(x), self.arithmetic))

    def attend(
        self, name: str, x: Enclosure, memory: Enclosure, heads: int, visible: torch.Tensor
    ) -> Enclosure:
        def split(part: str, rows: Enclosure) -> Enclosure:
            projected = self.linear(f"{name}.{part}_proj", rows)
            return projected.map(lambda value: value.unflatten(-1, (heads, -1)).transpose(1, 2))

        scale = (self.config.d_model // heads) ** -0.5
        every = visible.expand(-1, -1, x.value.shape[1], -1)
        mixed = attention(
            split("q", x), split("k", memory), split("v", memory), every, scale, self.arithmetic
        )
        return self.linear(f"{name}.out_proj", merge_heads(mixed.result))

    def feed_forward(self, name: str, x: Enclosure) -> Enclosure:
        inner = self.linear(f"{name}.fc1", x)
        inner = activation(inner, self.config.activation_function, self.arithmetic)
        return self.linear(f"{name}.fc2", inner)

    def encoder_block(self, name: str, x: Enclosure, real: torch.Tensor) -> Enclosure:
        heads = self.config.encoder_attention_heads
        own = f"{name}.self_attn"
        x = self.branch(f"{own}_layer_norm", x, lambda y: self.attend(own, y, y, heads, real))
        return self.branch(f"{name}.final_layer_norm", x, lambda y: self.feed_forward(name, y))

    def decoder_block(
        self,
        name: str,
        x: Enclosure,
        memory: Enclosure,
        visible: torch.Tensor,
        real: torch.Tensor,
    ) -> Enclosure:
        heads = self.config.decoder_attention_heads
        own, cross = f"{name}.self_attn", f"{name}.encoder_attn"
        x = self.branch(f"{own}_layer_norm", x, lambda y: self.attend(own, y, y, heads, visible))
        x = self.branch(
            f"{cross}_layer_norm", x, lambda y: self.attend(cross, y, memory, heads, real)
        )
        return self.branch(f"{name}.final_layer_norm", x, lambda y: self.feed_forward(name, y))


def _mask(inputs: Mapping[str, torch.Tensor], name: str, ids: torch.Tensor) -> torch.Tensor:
    mask = inputs.get(name, torch.ones_like(ids))
    return mask.bool()[:, None, None]
