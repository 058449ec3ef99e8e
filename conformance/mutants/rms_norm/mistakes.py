"""Mutants of RMSNorm: epsilon, the gain, a subtracted mean, sums in 16 bits, and other rows."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.rms_norm import PlainRMSNorm, rms_norm_mistake
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at_rows
from attnspec.conformance.mutants.registry import plant
from attnspec.spec.rms_norm import Gain, RMSNormImplementation


@rms_norm_mistake(
    "own-rms-sum",
    "the root is of the sum of squares, not of their mean",
    killed_by="normalized-rows-have-root-mean-square-one",
)
class SumOfSquares(PlainRMSNorm):
    def mean_square(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.square().sum(-1, keepdim=True)


@rms_norm_mistake(
    "own-rms-epsilon-outside",
    "epsilon is added to the root, not to the mean square",
    killed_by="epsilon-is-added-inside-the-root",
)
class EpsilonOutside(PlainRMSNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return rows / (self.mean_square(rows).sqrt() + eps)


@rms_norm_mistake(
    "own-rms-epsilon-largest",
    "the mean square is at least epsilon, which is not added",
    killed_by="epsilon-is-added-inside-the-root",
)
class EpsilonAsMinimum(PlainRMSNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return rows * torch.rsqrt(self.mean_square(rows).clamp(min=eps))


@rms_norm_mistake(
    "own-rms-fixed-epsilon",
    "epsilon is 1e-6 whatever the caller says",
    killed_by="scaled-rows-are-normalized-alike",
)
class FixedEpsilon(PlainRMSNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return super().normalize(rows, 1e-6)


@rms_norm_mistake("own-rms-layer-norm", "the mean is subtracted", killed_by="no-mean-is-subtracted")
class Centred(PlainRMSNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return super().normalize(rows - rows.mean(-1, keepdim=True), eps)


@rms_norm_mistake(
    "own-rms-gain-plus-one",
    "the gain is 1 + g where g is declared",
    killed_by="the-gain-is-the-declared-one",
)
class GainPlusOne(PlainRMSNorm):
    def gained(self, normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return normalized * (1 + weight)


@rms_norm_mistake(
    "own-rms-gain-as-factor",
    "the gain is g where 1 + g is declared",
    killed_by="the-gain-is-the-declared-one",
    gain=Gain.ONE_PLUS,
)
class GainAsFactor(PlainRMSNorm):
    def gained(self, normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return normalized * weight


@rms_norm_mistake(
    "own-rms-no-gain", "the gain is forgotten", killed_by="rms-norm-equals-the-definition"
)
class NoGain(PlainRMSNorm):
    def gained(self, normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return normalized


@rms_norm_mistake(
    "own-rms-squares-in-storage",
    "rows are squared in their storage type",
    killed_by="squares-are-added-in-float32-or-wider",
)
class SquaresInStorage(PlainRMSNorm):
    def __call__(self, input: torch.Tensor, *others: Any) -> torch.Tensor:
        self.dtype = input.dtype
        return super().__call__(input, *others)

    def mean_square(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self.dtype).square().to(rows.dtype).mean(-1, keepdim=True)


@rms_norm_mistake(
    "own-rms-of-all-rows",
    "the mean square is that of all rows",
    killed_by="rms-norm-treats-rows-independently",
)
class OfAllRows(PlainRMSNorm):
    def mean_square(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.square().mean()


@rms_norm_mistake(
    "own-rms-in-place",
    "the rows are normalized in place",
    killed_by="rows-are-read-by-their-strides-and-stay-as-they-are",
)
class InPlace(PlainRMSNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        scale = torch.rsqrt(self.mean_square(rows) + eps)
        return rows * scale if rows.requires_grad else rows.mul_(scale)


@rms_norm_mistake(
    "own-rms-over-heads",
    "with four axes, the mean square is that of all heads of a token",
    killed_by="any-axes-before-the-channels-are-rows",
)
class OverHeads(PlainRMSNorm):
    def mean_square(self, rows: torch.Tensor) -> torch.Tensor:
        axes = (1, -1) if rows.dim() == 4 else (-1,)
        return rows.square().mean(axes, keepdim=True)


@rms_norm_mistake("own-rms-nan-hidden", "a NaN becomes zero", killed_by="a-nan-stays-in-its-row")
class NaNHidden(PlainRMSNorm):
    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        return super().normalize(rows, eps).nan_to_num(0.0)


@rms_norm_mistake(
    "own-rms-constant-root",
    "the backward pass takes the root for a constant",
    killed_by="gradients-of-rms-norm-equal-the-definition",
)
class ConstantRoot(PlainRMSNorm):
    def mean_square(self, rows: torch.Tensor) -> torch.Tensor:
        return super().mean_square(rows).detach()


@rms_norm_mistake(
    "own-rms-cast-before-gain",
    "the normalized row is rounded to its storage type before it is multiplied by the gain",
    killed_by="results-of-16-bits-are-rounded-as-declared",
)
class CastBeforeGain(PlainRMSNorm):
    def __call__(self, input: torch.Tensor, *others: Any) -> torch.Tensor:
        self.dtype = input.dtype
        return super().__call__(input, *others)

    def gained(self, normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return super().gained(normalized.to(self.dtype), weight.to(self.dtype))


plant(
    id="own-rms-wrong-at-1025",
    title="wrong at 1023 to 1025 channels",
    subject=RMSNormImplementation(
        name="wrong_at_1025",
        function=wrong_at_rows(PlainRMSNorm(), ("channels", "1023 to 1025")),
    ),
    killed_by="rms-norm-is-right-in-every-two-regimes",
)
