"""Mutants of a LayerNorm that is judged on its own."""

import torch

from attnspec.conformance.mutants.bases.layer_norm import (
    PlainLayerNorm,
    WithExplicitBackward,
    layer_norm_mistake,
)
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at_rows
from attnspec.conformance.mutants.registry import plant
from attnspec.spec.layer_norm import LayerNormImplementation


@layer_norm_mistake(
    "own-ln-unbiased",
    "the variance is divided by one less than the channels",
    killed_by="normalized-rows-have-mean-zero-and-biased-variance-one",
)
class Unbiased(PlainLayerNorm):
    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        return centred.square().sum(-1, keepdim=True) / max(rows.shape[-1] - 1, 1)


@layer_norm_mistake(
    "own-ln-no-mean",
    "the mean is not subtracted: an RMSNorm with a bias",
    killed_by="normalized-rows-have-mean-zero-and-biased-variance-one",
)
class NoMean(PlainLayerNorm):
    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(rows[..., :1])


@layer_norm_mistake(
    "own-ln-no-gain", "the gain is forgotten", killed_by="a-layer-norm-equals-the-definition"
)
class NoGain(PlainLayerNorm):
    def affine(
        self, normalized: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        return normalized + bias


@layer_norm_mistake(
    "own-ln-bias-first",
    "the bias is added before the gain is multiplied",
    killed_by="a-layer-norm-equals-the-definition",
)
class BiasFirst(PlainLayerNorm):
    def affine(
        self, normalized: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        return (normalized + bias) * weight


@layer_norm_mistake(
    "own-ln-one-pass",
    "the variance is the mean of squares less the square of the mean",
    killed_by="rows-with-a-constant-added-are-normalized-alike",
)
class OnePass(PlainLayerNorm):
    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        square = rows.square().mean(-1, keepdim=True)
        return (square - self.mean(rows).square()).clamp(min=0)


@layer_norm_mistake(
    "own-ln-fixed-epsilon",
    "epsilon is 1e-5 whatever the caller says",
    killed_by="multiplied-rows-are-normalized-alike",
)
class FixedEpsilon(PlainLayerNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return super().normalize(rows, 1e-5)


@layer_norm_mistake(
    "own-ln-epsilon-outside",
    "epsilon is added to the deviation, outside the root",
    killed_by="a-layer-norm-adds-epsilon-inside-the-root",
)
class EpsilonOutside(PlainLayerNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        centred = rows - self.mean(rows)
        return centred / (self.variance(rows, centred).sqrt() + eps)


@layer_norm_mistake(
    "own-ln-no-epsilon",
    "epsilon is not added",
    killed_by="a-layer-norm-adds-epsilon-inside-the-root",
)
class NoEpsilon(PlainLayerNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return super().normalize(rows, 0.0)


@layer_norm_mistake(
    "own-ln-of-all-rows",
    "the variance is that of all rows",
    killed_by="a-layer-norm-treats-rows-independently",
)
class OfAllRows(PlainLayerNorm):
    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        return centred.square().mean()


@layer_norm_mistake(
    "own-ln-moments-in-storage",
    "mean and squares are rounded to the storage type",
    killed_by="moments-are-computed-in-float32-or-wider",
)
class MomentsInStorage(PlainLayerNorm):
    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        return super().mean(rows).to(self.dtype).to(rows.dtype)

    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        squares = centred.to(self.dtype).square().to(rows.dtype)
        return squares.mean(-1, keepdim=True)


@layer_norm_mistake(
    "own-ln-cast-before-gain",
    "the normalized row is rounded to its storage type before gain and bias",
    killed_by="a-layer-norm-rounds-as-declared",
)
class CastBeforeGain(PlainLayerNorm):
    def affine(
        self, normalized: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        narrow = (each.to(self.dtype) for each in (normalized, weight, bias))
        return super().affine(*narrow)


@layer_norm_mistake(
    "own-ln-in-place",
    "the rows are centred in place",
    killed_by="a-layer-norm-reads-rows-by-their-strides",
)
class InPlace(PlainLayerNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        if rows.requires_grad:
            return super().normalize(rows, eps)
        return super().normalize(rows.sub_(self.mean(rows)), eps)


@layer_norm_mistake(
    "own-ln-over-heads",
    "with four axes, the variance is that of all heads of a token",
    killed_by="a-layer-norm-takes-any-axes-before-the-channels",
)
class OverHeads(PlainLayerNorm):
    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        return centred.square().mean((1, -1) if rows.dim() == 4 else (-1,), keepdim=True)


@layer_norm_mistake(
    "own-ln-nan-hidden",
    "a NaN becomes zero",
    killed_by="a-layer-norm-keeps-a-nan-in-its-row",
)
class NaNHidden(PlainLayerNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return super().normalize(rows, eps).nan_to_num(0.0)


@layer_norm_mistake(
    "own-ln-constant-root",
    "the backward pass takes the deviation for a constant",
    killed_by="gradients-of-a-layer-norm-equal-the-definition",
)
class ConstantRoot(PlainLayerNorm):
    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        return super().variance(rows, centred).detach()


@layer_norm_mistake(
    "own-ln-short-statistics",
    "the backward pass reads mean and root that were rounded to the storage type",
    killed_by="gradients-of-a-layer-norm-equal-the-definition",
    source="https://github.com/pytorch/pytorch/pull/140259",
)
class ShortStatistics(WithExplicitBackward):
    def saved(self, statistic: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return statistic.to(dtype)


@layer_norm_mistake(
    "own-ln-short-sums",
    "the gradients of gain and bias are summed in the storage type",
    killed_by="gradients-of-gain-and-bias-are-summed-as-declared",
    source="https://github.com/linkedin/Liger-Kernel/pull/950",
)
class ShortSums(WithExplicitBackward):
    def total(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        total = torch.zeros_like(rows[0], dtype=dtype)
        for row in rows:
            total = total + row.to(dtype)
        return total


plant(
    id="own-ln-wrong-at-1025",
    title="wrong at 1023 to 1025 channels",
    subject=LayerNormImplementation(
        name="wrong_at_1025",
        function=wrong_at_rows(PlainLayerNorm(), ("channels", "1023 to 1025")),
    ),
    killed_by="a-layer-norm-is-right-in-every-two-regimes",
)
