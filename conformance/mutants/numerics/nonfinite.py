"""Mutants of NUM: readable NaN and infinity turned into numbers."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake


@mistake(
    "SPV-08",
    "NaN swallowed: meant for empty rows, zeros replace every NaN of the softmax",
    killed_by="a-readable-nan-key-stays-visible",
    source="https://github.com/pytorch/pytorch/issues/141128",
)
class NanOfSoftmaxZeroed(Dense):
    # meant for empty rows, which are NaN in a plain softmax
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, visible).nan_to_num(nan=0.0)


@mistake(
    "own-maximum-passes-over-nan",
    "maximum and sum pass over NaN, so that a NaN score counts as hidden",
    killed_by="a-visible-nan-stays-visible",
)
class NanPassedOver(Dense):
    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(
            -1, keepdim=True
        )

    def total(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.nansum(-1, keepdim=True)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights.masked_fill(weights.isnan(), 0.0), value)


@mistake(
    "own-nan-value-zero",
    "NaN in values taken for zero",
    killed_by="a-readable-nan-value-stays-visible",
)
class NanOfValuesZeroed(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value.masked_fill(value.isnan(), 0.0))


@mistake(
    "own-infinity-clamped",
    "infinite outputs clamped to the largest number",
    killed_by="a-readable-infinite-value-stays-visible",
)
class InfinityClamped(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        largest = torch.finfo(value.dtype).max
        return super().finish(out.clamp(-largest, largest), value)


@mistake(
    "own-nan-spreads",
    "NaN in one channel of a value spoils all channels",
    killed_by="a-readable-nan-value-stays-visible",
)
class NanSpreads(Dense):
    """An attention in which a NaN in one channel of an output row spoils all channels."""

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        return out.masked_fill(out.isnan().any(-1, keepdim=True), torch.nan)


@mistake(
    "own-nan-query-zero",
    "NaN in queries taken for zero",
    killed_by="a-visible-nan-stays-visible",
)
class NanOfQueriesZeroed(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query.nan_to_num(), key, scale)
