"""Mutants of NUM: NaN and infinity that may be read, turned into numbers."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense

QUERY = "a-visible-nan-stays-visible"
KEY = "a-readable-nan-key-stays-visible"
VALUE = "a-readable-nan-value-stays-visible"
INFINITE = "a-readable-infinite-value-stays-visible"


class _SafeSoftmax(Dense):
    # Meant for empty rows, which are NaN in a plain softmax.
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, visible).nan_to_num(nan=0.0)


class _PeakPassesOverNan(Dense):
    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(
            -1, keepdim=True
        )

    def total(self, weights: torch.Tensor) -> torch.Tensor:
        return weights.nansum(-1, keepdim=True)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights.masked_fill(weights.isnan(), 0.0), value)


class _ValueCleaned(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value.masked_fill(value.isnan(), 0.0))


class _InfinityClamped(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        largest = torch.finfo(value.dtype).max
        return super().finish(out.clamp(-largest, largest), value)


class _NanSpreads(Dense):
    """One NaN anywhere in a row of values spoils all its channels."""

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        return out.masked_fill(out.isnan().any(-1, keepdim=True), torch.nan)


class _QueryCleaned(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query.nan_to_num(), key, scale)


plant_dense(
    "SPV-08",
    "NaN swallowed: meant for empty rows, zeros replace every NaN of the softmax",
    _SafeSoftmax(),
    QUERY,
    KEY,
    source="https://github.com/pytorch/pytorch/issues/141128",
)
plant_dense(
    "own-maximum-passes-over-nan",
    "maximum and sum pass over NaN, so that a NaN score counts as hidden",
    _PeakPassesOverNan(),
    QUERY,
    KEY,
)
plant_dense("own-nan-value-zero", "NaN in values taken for zero", _ValueCleaned(), VALUE)
plant_dense(
    "own-infinity-clamped",
    "infinite outputs clamped to the largest number",
    _InfinityClamped(),
    INFINITE,
)
plant_dense(
    "own-nan-spreads", "NaN in one channel of a value spoils all channels", _NanSpreads(), VALUE
)
plant_dense("own-nan-query-zero", "NaN in queries taken for zero", _QueryCleaned(), QUERY)
