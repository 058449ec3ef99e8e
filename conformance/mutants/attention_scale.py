"""Mutants of ATT: the scale is wrong, or applied in the wrong place."""

import math

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.conformance.mutants.tiled import Tiled

GITHUB = "https://github.com"


@mistake(
    "SCL-03",
    "the default scale is 1 instead of 1/sqrt(d_head)",
    kills=("default-scale", "output-equals-the-definition"),
    source=f"{GITHUB}/mlc-ai/mlc-llm/pull/3426",
)
class MissingScale(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 1.0 if scale is None else scale


@mistake(
    "SCL-04",
    "the scale is applied twice",
    kills=("scale-multiplies-the-scores", "output-equals-the-definition"),
    source=f"{GITHUB}/AI-Hypercomputer/maxtext/issues/3138",
)
class ScaleTwice(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        once = super().scale(query, value, scale)
        return once * once


@mistake(
    "SCL-05",
    "scores are divided by the scale",
    kills=("scale-multiplies-the-scores", "output-equals-the-definition"),
    source=f"{GITHUB}/AI-Hypercomputer/maxtext/issues/1370",
)
class InvertedScale(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        right = super().scale(query, value, scale)
        return 1 / right if right else 0.0


@mistake(
    "SCL-06",
    "the scale is applied after softmax",
    kills=("weights-sum-to-one", "scale-multiplies-the-scores"),
    source=f"{GITHUB}/FrancescoSaverioZuppichini/ViT/issues/2",
)
class ScaleAfterSoftmax(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.late = scale
        return query @ key.mT

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights * self.late, value)


@mistake(
    "SCL-08",
    "the scale compounds from one tile of keys to the next",
    kills=("output-equals-the-definition", "order-of-keys-does-not-matter"),
    source=f"{GITHUB}/flagos-ai/FlagGems/pull/424",
)
class CompoundingScale(Tiled):
    def tile_scale(self, scale: float, number: int) -> float:
        return scale * math.log2(math.e) ** number


@mistake(
    "SCL-11",
    "the bias is multiplied by the scale",
    kills=("scale-multiplies-the-scores",),
    source=f"{GITHUB}/facebookresearch/xformers/issues/576",
)
class ScaledBias(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.late = scale
        return super().scores(query, key, scale)

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return scores + torch.where(bias.isinf(), bias, bias * self.late)


@mistake("own-scale-ignored", "the scale given is ignored", kills=("scale-multiplies-the-scores",))
class IgnoredScale(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, None)


@mistake("own-scale-of-d-value", "the default scale is 1/sqrt(d_value)", kills=("default-scale",))
class ScaleOfValues(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(value, value, scale)


@mistake("own-scale-of-64", "the default scale is 1/8, as for d_head 64", kills=("default-scale",))
class ScaleOf64(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 0.125 if scale is None else scale


@mistake(
    "own-scale-of-rounded-width",
    "the default scale is that of d_head rounded up to a power of two",
    kills=("default-scale",),
)
class ScaleOfPaddedHead(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        padded = 1 << (query.shape[-1] - 1).bit_length()
        return padded**-0.5 if scale is None else scale


@mistake("own-scale-without-root", "the default scale is 1/d_head", kills=("default-scale",))
class ScaleWithoutRoot(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 1 / query.shape[-1] if scale is None else scale


@mistake(
    "own-scale-percent",
    "the scale is 1 percent too large",
    kills=("output-equals-the-definition", "identity-values-reveal-the-weights"),
)
class ScaleTooLarge(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return 1.01 * super().scale(query, value, scale)


@mistake(
    "own-scale-sign",
    "the sign of the scale is lost",
    kills=("negative-and-zero-scale",),
)
class ScaleWithoutSign(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return abs(super().scale(query, value, scale))


@mistake(
    "own-scale-zero",
    "a scale of zero is taken for no scale",
    kills=("negative-and-zero-scale",),
)
class ZeroIsDefault(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, scale or None)


@mistake(
    "own-scale-causal",
    "hidden scores are minus infinity before the scale multiplies them",
    kills=("negative-and-zero-scale",),
)
class HiddenBeforeScale(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        self.late = scale
        return super().scores(query, key, scale)

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(~visible, -torch.inf * self.late)


@mistake(
    "own-queries-clipped",
    "queries are clipped to the range of a narrow format",
    kills=("queries-and-scale-trade-powers-of-four",),
)
class ClippedQueries(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query.clamp(-4, 4), key, scale)


@mistake(
    "own-scale-epsilon",
    "an epsilon is added to the scale",
    kills=("queries-and-scale-trade-powers-of-four",),
)
class ScaleWithEpsilon(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return super().scale(query, value, scale) + 1e-6
