"""Encoder-decoders with one mistake each, by which a wrong result is explained."""

import math
from typing import Any

import torch
from torch.nn import functional

from attnspec.conformance.operators.encoder_decoder.steps import Branch, Pair, Steps


class NoScale(Steps):
    title = "the rows of tokens are not scaled"

    def token_scale(self) -> float:
        return 1.0


class AlwaysScaled(Steps):
    title = "the rows of tokens are scaled whatever the configuration says"

    def token_scale(self) -> float:
        return float(self.config.d_model**0.5)


class NoPositions(Steps):
    title = "no positions are added"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        return 0 * super().sinusoids(places)

    def learned(self, places: torch.Tensor, side: str) -> torch.Tensor:
        return 0 * super().learned(places, side)


class PositionsFromOne(Steps):
    title = "positions count from one"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        return super().sinusoids(places + 1)

    def learned(self, places: torch.Tensor, side: str) -> torch.Tensor:
        table = self.weights[f"model.{side}.embed_positions.weight"]
        return table.roll(-1, 0)[2:][places]


class NoOffset(Steps):
    title = "learned positions begin with the first row of the table, not with the third"

    def learned(self, places: torch.Tensor, side: str) -> torch.Tensor:
        return self.weights[f"model.{side}.embed_positions.weight"][places]


class NoEmbeddingNorm(Steps):
    title = "the embeddings are not normalized"

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x if name.endswith("layernorm_embedding") else super().norm(x, name)


class FrequencyOfChannel(Steps):
    title = "each channel has a frequency of its own, not each pair"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        width = self.config.d_model
        channels = torch.arange(width, dtype=torch.float64)
        angles = torch.outer(places.double(), 10_000.0 ** (-channels / width))
        table = torch.empty_like(angles)
        table[:, 0::2], table[:, 1::2] = torch.sin(angles[:, 0::2]), torch.cos(angles[:, 1::2])
        return table


class CosinesOfSines(Steps):
    title = "cosines are taken of angles that the sines have overwritten"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        width = self.config.d_model
        channels = torch.arange(width, dtype=torch.float64) // 2 * 2
        table = torch.outer(places.double(), 10_000.0 ** (-channels / width))
        sines, cosines = slice(0, None, 2), slice(1, None, 2)
        if self.profile.sinusoids == "halves":
            sines, cosines = slice(0, width // 2), slice(width // 2, None)
        taken = table[:, 1::2]
        table[:, sines] = torch.sin(table[:, 0::2])
        table[:, cosines] = torch.cos(
            taken if self.profile.sinusoids == "halves" else table[:, sines]
        )
        return table


class HalvedFrequencies(Steps):
    title = "the exponent of the frequencies is i/d, not 2i/d"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        width = self.config.d_model
        angles = torch.outer(
            places.double(), 10_000.0 ** (-torch.arange(width // 2, dtype=torch.float64) / width)
        )
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class RelativePlaces(Steps):
    title = "positions are divided by the length of the text"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        return super().sinusoids(places / max(len(places), 1))


class SinusoidsInFloat32(Steps):
    title = "sinusoidal positions are computed in float32"

    def sinusoids(self, places: torch.Tensor) -> torch.Tensor:
        width = self.config.d_model
        rates = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10_000.0) / width))
        angles = torch.outer(places.float(), rates)
        return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


class PositionsOfSlots(Steps):
    title = "padding before a token moves its position"

    def places(self, real: torch.Tensor) -> torch.Tensor:
        return torch.arange(real.shape[-1]).repeat(len(real), 1)


class PositionsOfRealTokens(Steps):
    title = "positions count real tokens alone"

    def places(self, real: torch.Tensor) -> torch.Tensor:
        return (real[:, 0, 0].cumsum(1) - 1).clamp(min=0)


class MaskAsLength(Steps):
    title = "a mask is read as a number of tokens, as if padding followed the text"

    def real(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        real = super().real(ids, mask)
        return torch.arange(real.shape[-1]) < real.sum(-1, keepdim=True)


class CausalEncoder(Steps):
    title = "a causal mask hides later tokens of the source in the encoder"

    def encoder_hidden(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        return ~real | torch.ones(length, length, dtype=torch.bool).triu(1)


class NotCausal(Steps):
    title = "the decoder has no causal mask"

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return ~self.real(ids, mask)


class CausalOffByOne(Steps):
    title = "each target token reads the next one too"

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        length = ids.shape[1]
        return torch.ones(length, length, dtype=torch.bool).triu(2) | ~self.real(ids, mask)


class MaskReplacesCausal(Steps):
    title = "a padding mask of the target replaces the causal mask"

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return super().hidden(ids, None) if mask is None else ~self.real(ids, mask)


class CausalCross(Steps):
    title = "a causal mask hides later tokens of the source in cross-attention"

    def cross_visible(
        self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        every = torch.ones(target.shape[1], source.shape[1], dtype=torch.bool).tril()
        return super().cross_visible(source, target, mask) & every


class CrossReadsPadding(Steps):
    title = "cross-attention reads the padding of the source"

    def cross_visible(
        self, source: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return self.real(source, None)


class EncoderReadsPadding(Steps):
    title = "the encoder reads the padding of the source"

    def encoder_hidden(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(real)


class PreNorm(Steps):
    title = "LayerNorm precedes each branch (pre-norm) whatever the configuration says"

    def branch(self, x: torch.Tensor, name: str, function: Branch) -> torch.Tensor:
        return x + function(self.norm(x, name))


class PostNorm(Steps):
    title = "LayerNorm follows each sum (post-norm) whatever the configuration says"

    def branch(self, x: torch.Tensor, name: str, function: Branch) -> torch.Tensor:
        return self.norm(x + function(x), name)


class NoResidual(Steps):
    title = "the states are not added to the attention"

    def branch(self, x: torch.Tensor, name: str, function: Branch) -> torch.Tensor:
        if not name.endswith("self_attn_layer_norm"):
            return super().branch(x, name, function)
        if self.config.norm_first:
            return function(self.norm(x, name))
        return self.norm(function(x), name)


class NoCrossResidual(Steps):
    title = "the states are not added to the cross-attention"

    def branch(self, x: torch.Tensor, name: str, function: Branch) -> torch.Tensor:
        if not name.endswith("encoder_attn_layer_norm"):
            return super().branch(x, name, function)
        if self.config.norm_first:
            return function(self.norm(x, name))
        return self.norm(function(x), name)


class NoCross(Steps):
    title = "the decoder has no cross-attention"

    def cross(
        self, name: str, x: torch.Tensor, cross: Pair, readable: torch.Tensor
    ) -> torch.Tensor:
        return x


class CrossAfterMLP(Steps):
    title = "cross-attention follows the feed-forward network"

    def decoder_block(
        self,
        name: str,
        x: torch.Tensor,
        past: Pair | None,
        cross: Pair,
        hidden: torch.Tensor,
        readable: torch.Tensor,
    ) -> tuple[torch.Tensor, Pair]:
        own = f"{name}.self_attn"
        kept: list[Pair] = []

        def attended(rows: torch.Tensor) -> torch.Tensor:
            kept.append(self.join(past, self.pair(rows, own)))
            return self.attend(own, rows, kept[0], hidden)

        x = self.feed_forward(name, self.branch(x, f"{own}_layer_norm", attended))
        return self.cross(name, x, cross, readable), kept[0]


class ReadsEmbeddings(Steps):
    title = "cross-attention reads the embeddings of the source, not the last states"

    def memory(self, encoded: list[torch.Tensor], layer: int) -> torch.Tensor:
        return encoded[0]


class ReadsSameBlock(Steps):
    title = "each block of the decoder reads the block of the encoder beside it"

    def memory(self, encoded: list[torch.Tensor], layer: int) -> torch.Tensor:
        return encoded[min(layer + 1, len(encoded) - 1)]


class ReadsFirstSource(Steps):
    title = "all texts of a batch read the first source"

    def memory(self, encoded: list[torch.Tensor], layer: int) -> torch.Tensor:
        return encoded[-1][:1].expand_as(encoded[-1])


class ScaleOfModel(Steps):
    title = "scores are scaled by the width of the model, not of a head"

    def scale(self, d_head: int) -> float:
        return float(self.config.d_model**-0.5)


class Unscaled(Steps):
    title = "scores are not scaled"

    def scale(self, d_head: int) -> float:
        return 1.0


class HeadsInterleaved(Steps):
    title = "neighbouring channels belong to different heads"

    def split(self, x: torch.Tensor, name: str) -> torch.Tensor:
        parts: torch.Tensor = x.unflatten(-1, (-1, self.heads(name)))
        return parts.movedim(-1, 1)


class HeadsOfEncoder(Steps):
    title = "the decoder has as many heads as the encoder"

    def heads(self, name: str) -> int:
        return self.config.encoder_attention_heads


class ReLU(Steps):
    title = "the activation is ReLU whatever the configuration says"

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x)


class TanhGELU(Steps):
    title = "the activation is the tanh form of GELU whatever the configuration says"

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")


class FixedEpsilon(Steps):
    title = "epsilon is 1e-6 whatever the configuration says"

    def epsilon(self, name: str) -> float:
        return 1e-6


class NoFinalNorm(Steps):
    title = "no LayerNorm follows the last block"

    def final(self, x: torch.Tensor, side: str) -> torch.Tensor:
        return x


class NoFinalNormOfEncoder(Steps):
    title = "no LayerNorm follows the last block of the encoder"

    def final(self, x: torch.Tensor, side: str) -> torch.Tensor:
        return x if side == "encoder" else super().final(x, side)


class NoHeadBias(Steps):
    title = "the head has no bias"

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weights["model.shared.weight"])


class ScaledHead(Steps):
    title = "the logits are divided by the root of the channels"

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return super().logits(x * self.config.d_model**-0.5)


class StepsFromZero(Steps):
    title = "each step counts positions from zero"

    def offset(self, length: int) -> int:
        return 0


class StepHidesItself(Steps):
    title = "a step does not read its own tokens"

    def hidden_of_step(self, length: int, count: int) -> torch.Tensor:
        hidden = super().hidden_of_step(length, count)
        return hidden | torch.ones_like(hidden).triu(length) if length else hidden


class StepsNotCausal(Steps):
    title = "the tokens of a step read later ones of the same step"

    def hidden_of_step(self, length: int, count: int) -> torch.Tensor:
        return torch.zeros(count, length + count, dtype=torch.bool)


class StepsReadPadding(Steps):
    title = "the steps read the padding of the source"

    def step(
        self, decoder_input_ids: torch.Tensor, cache: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        return super().step(decoder_input_ids, {**cache, "mask": None})


MISTAKES: tuple[type[Steps], ...] = (
    *(NoScale, AlwaysScaled, NoPositions, PositionsFromOne, NoOffset, NoEmbeddingNorm),
    *(FrequencyOfChannel, CosinesOfSines, HalvedFrequencies, RelativePlaces, SinusoidsInFloat32),
    *(PositionsOfSlots, PositionsOfRealTokens, MaskAsLength),
    *(CausalEncoder, NotCausal, CausalOffByOne, MaskReplacesCausal, CausalCross),
    *(CrossReadsPadding, EncoderReadsPadding, PreNorm, PostNorm, NoResidual, NoCrossResidual),
    *(NoCross, CrossAfterMLP, ReadsEmbeddings, ReadsSameBlock, ReadsFirstSource),
    *(ScaleOfModel, Unscaled, HeadsInterleaved, HeadsOfEncoder, ReLU, TanhGELU, FixedEpsilon),
    *(NoFinalNorm, NoFinalNormOfEncoder, NoHeadBias, ScaledHead),
    *(StepsFromZero, StepHidesItself, StepsNotCausal, StepsReadPadding),
)
"""Models with one mistake each."""
