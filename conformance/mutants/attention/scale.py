"""Mutants of ATT: a wrong scale, or a scale applied in the wrong place."""

import math

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake

GITHUB = "https://github.com"


@mistake(
    "SCL-03",
    "the default scale is 1 instead of 1/sqrt(d_head)",
    killed_by="default-scale",
    source=f"{GITHUB}/mlc-ai/mlc-llm/pull/3426",
)
class MissingScale(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 1.0 if scale is None else scale


@mistake(
    "SCL-04",
    "the scale is applied twice",
    killed_by="scale-multiplies-the-scores",
    source=f"{GITHUB}/AI-Hypercomputer/maxtext/issues/3138",
)
class ScaleTwice(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        once = super().scale(query, value, scale)
        return once * once


@mistake(
    "SCL-05",
    "scores are divided by the scale",
    killed_by="scale-multiplies-the-scores",
    source=f"{GITHUB}/AI-Hypercomputer/maxtext/issues/1370",
)
class InvertedScale(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        correct = super().scale(query, value, scale)
        return 1 / correct if correct else 0.0


@mistake(
    "SCL-06",
    "the scale is applied after softmax",
    killed_by="weights-sum-to-one",
    source=f"{GITHUB}/FrancescoSaverioZuppichini/ViT/issues/2",
)
class ScaleAfterSoftmax(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.factor = scale
        return query @ key.mT

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights * self.factor, value)


@mistake(
    "SCL-08",
    "the scale compounds from one tile of keys to the next",
    killed_by="output-equals-the-definition",
    source=f"{GITHUB}/flagos-ai/FlagGems/pull/424",
)
class CompoundingScale(Tiled):
    def tile_scale(self, scale: float, number: int) -> float:
        return scale * math.log2(math.e) ** number


@mistake(
    "SCL-11",
    "the bias is multiplied by the scale",
    killed_by="scale-multiplies-the-scores",
    source=f"{GITHUB}/facebookresearch/xformers/issues/576",
)
class ScaledBias(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.factor = scale
        return super().scores(query, key, scale)

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return scores + torch.where(bias.isinf(), bias, bias * self.factor)


@mistake("own-scale-ignored", "the scale given is ignored", killed_by="scale-multiplies-the-scores")
class IgnoredScale(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, None)


@mistake("own-scale-of-d-value", "the default scale is 1/sqrt(d_value)", killed_by="default-scale")
class ScaleOfValues(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(value, value, scale)


@mistake("own-scale-of-64", "the default scale is 1/8, as for d_head 64", killed_by="default-scale")
class ScaleOf64(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 0.125 if scale is None else scale


@mistake(
    "own-scale-of-rounded-width",
    "the default scale is that of d_head rounded up to a power of two",
    killed_by="default-scale",
)
class ScaleOfPaddedHead(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        padded = 1 << (query.shape[-1] - 1).bit_length()
        return padded**-0.5 if scale is None else scale


@mistake("own-scale-without-root", "the default scale is 1/d_head", killed_by="default-scale")
class ScaleWithoutRoot(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 1 / query.shape[-1] if scale is None else scale


@mistake(
    "own-scale-percent",
    "the scale is 1 percent too large",
    killed_by="output-equals-the-definition",
)
class ScaleTooLarge(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 1.01 * super().scale(query, value, scale)


@mistake(
    "own-scale-sign",
    "the sign of the scale is lost",
    killed_by="negative-and-zero-scale",
)
class ScaleWithoutSign(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return abs(super().scale(query, value, scale))


@mistake(
    "own-scale-zero",
    "a scale of zero is taken for no scale",
    killed_by="negative-and-zero-scale",
)
class ZeroIsDefault(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, scale or None)


@mistake(
    "own-scale-causal",
    "hidden scores are minus infinity before the scale multiplies them",
    killed_by="negative-and-zero-scale",
)
class HiddenBeforeScale(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.factor = scale
        return super().scores(query, key, scale)

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(~visible, -torch.inf * self.factor)


@mistake(
    "own-queries-clipped",
    "queries are clipped to the range of a narrow format",
    killed_by="a-power-of-four-moves-from-scale-to-queries",
)
class ClippedQueries(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query.clamp(-4, 4), key, scale)


@mistake(
    "own-scale-epsilon",
    "an epsilon is added to the scale",
    killed_by="a-power-of-four-moves-from-scale-to-queries",
)
class ScaleWithEpsilon(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, scale) + 1e-6
