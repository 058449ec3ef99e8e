"""The worst error of an encoder-decoder's gradients, element by element: the reverse pass.

Each step is that of `models.bounds.backward`, in the order of the configuration. The cotangent of
the logits is exact.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from jaxtyping import Float

from attnspec.conformance.models.bounds.backward import (
    Gradients,
    Terms,
    flat,
    outer,
    reverse_layer_norm,
)
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    matmul,
    total,
)
from attnspec.conformance.models.bounds.forward import Normalized
from attnspec.conformance.operators.branches import (
    Attention,
    Weights,
    gradients_of_terms,
    input_major,
    reverse_feed_forward,
    reverse_maps,
    reverse_to_projections,
)
from attnspec.conformance.operators.encoder_decoder.bounds import Branch, Forward, Side
from attnspec.reference.padding import token_positions
from attnspec.spec.encoder_decoder import EncoderDecoderConfig, EncoderDecoderProfile

_TABLE = "model.shared.weight"
_BIAS = "final_logits_bias"


def gradients(
    config: EncoderDecoderConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    profile: EncoderDecoderProfile,
    enclosed: Forward,
    cotangent: Float[torch.Tensor, "batch target vocab"],
    arithmetic: Arithmetic,
) -> Gradients:
    """Enclose d(Σ cotangent·logits)/d(parameter) of every parameter.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids of both sides, and masks if there are any.
        profile: the positions of tokens behind padding.
        enclosed: the forward pass.
        cotangent: of the logits; zero at positions of padding.
        arithmetic: the roundings.
    """
    return _Reverse(config, weights, profile, arithmetic).gradients(inputs, enclosed, cotangent)


def _is_map(name: str, value: torch.Tensor) -> bool:
    """Return whether a parameter is the matrix of a linear map, and no table."""
    return value.dim() == 2 and name not in (_TABLE, _BIAS) and "embed" not in name


class _Reverse:
    """The reverse pass of one model."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        weights: Weights,
        profile: EncoderDecoderProfile,
        arithmetic: Arithmetic,
    ) -> None:
        self.config, self.profile, self.arithmetic = config, profile, arithmetic
        self.exact = input_major(weights, _is_map)
        self.terms: Terms = defaultdict(list)
        self.of_memory: list[tuple[str, Enclosure]] = []

    def gradients(
        self, inputs: Mapping[str, torch.Tensor], enclosed: Forward, cotangent: torch.Tensor
    ) -> Gradients:
        grad = Enclosure.exact(cotangent)
        last = enclosed.decoder.states[-1]
        self.terms[_TABLE].append(outer(grad, last, self.arithmetic))
        bias = total(flat(grad), self.arithmetic, 0)
        self.terms[_BIAS].append(bias.map(lambda x: x[None]))
        grad = matmul(grad, Enclosure.exact(self.exact[_TABLE]), self.arithmetic)
        target, mask = inputs["decoder_input_ids"], inputs.get("decoder_attention_mask")
        self.side("decoder", enclosed.decoder, target, mask, grad)
        # keys and values of every block are maps of the same states
        grad = reverse_maps(self.of_memory, self.exact, self.arithmetic)
        source, mask = inputs["input_ids"], inputs.get("attention_mask")
        self.side("encoder", enclosed.encoder, source, mask, grad)
        return gradients_of_terms(self.terms, _is_map, self.arithmetic)

    def side(
        self,
        name: str,
        side: Side,
        ids: torch.Tensor,
        mask: torch.Tensor | None,
        grad: Enclosure,
    ) -> None:
        """Reverse a side down to its tables."""
        if side.final is not None:
            grad = self.norm(f"model.{name}.layer_norm", side.final, grad)
        for block in reversed(side.blocks):
            for branch in reversed(block):
                grad = self.branch(branch, grad)
        if side.embedding_norm is not None:
            grad = self.norm(f"model.{name}.layernorm_embedding", side.embedding_norm, grad)
            real = torch.ones_like(ids) if mask is None else mask
            places = 2 + token_positions(real, self.profile.positions)
            self.scatter(f"model.{name}.embed_positions.weight", places, grad, 1.0)
        scale = math.sqrt(self.config.d_model) if self.config.scale_embedding else 1.0
        self.scatter(_TABLE, ids, grad, scale)

    def branch(self, branch: Branch, grad: Enclosure) -> Enclosure:
        """Reverse a branch, its LayerNorm and its sum."""
        if not self.config.norm_first:
            grad = self.norm(branch.name, branch.norm, grad)
            return self.inner(branch, grad, grad)
        inner = self.norm(branch.name, branch.norm, self.inner(branch, grad, None))
        return add(grad, inner, self.arithmetic)

    def inner(self, branch: Branch, grad: Enclosure, rest: Enclosure | None) -> Enclosure:
        """Return the gradient of the states that a branch reads, and the rest of their gradient."""
        parts, exact, arithmetic = branch.inner, self.exact, self.arithmetic
        if not isinstance(parts, Attention):
            result = reverse_feed_forward(grad, parts, exact, self.terms, arithmetic)
            return result if rest is None else add(rest, result, arithmetic)
        projections = reverse_to_projections(grad, parts, exact, self.terms, arithmetic)
        if parts.memory is not parts.rows:
            self.of_memory += projections[1:]
            projections = projections[:1]
        return reverse_maps(projections, exact, arithmetic, rest=rest)

    def norm(self, name: str, norm: Normalized, grad: Enclosure) -> Enclosure:
        return reverse_layer_norm(grad, norm, name, self.exact, self.terms, self.arithmetic)

    def scatter(self, name: str, rows: torch.Tensor, grad: Enclosure, scale: float) -> None:
        """Add each token's gradient to its row; a scale is rounded, and multiplied, once each."""
        one_hot = torch.nn.functional.one_hot(rows.flatten(), len(self.exact[name])).double()
        scaled = Enclosure.exact(scale * one_hot.mT)
        self.terms[name].append(matmul(scaled, flat(grad), self.arithmetic, spare=2))
