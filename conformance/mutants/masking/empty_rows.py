"""Mutants of MSK: rows that read nothing, and the number that a hidden score is given."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.planting import mistake, plant_dense
from attnspec.spec import CausalAlignment, EmptyRow, Feature, MaskedNonfinite


class FiniteFill(Dense):
    """An attention that hides a key by a finite score."""

    def __init__(self, score: float) -> None:
        self.score = score

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(~visible, self.score)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, torch.ones_like(visible))


plant_dense(
    "own-hidden-minus-ten",
    "hidden scores set to -10",
    FiniteFill(-10.0),
    killed_by="a-query-reads-exactly-its-keys",
)
plant_dense(
    "own-hidden-minus-hundred",
    "hidden scores set to -100",
    FiniteFill(-100.0),
    killed_by="large-later-keys-change-nothing",
)
plant_dense(
    "own-empty-row-mean",
    "hidden scores set to -1e9, so that an empty row gives the mean",
    FiniteFill(-1e9),
    killed_by="an-empty-row-gives-the-declared-output",
)


@mistake(
    "own-fill-raises-in-half",
    "hidden scores set to -1e9, which float16 cannot hold",
    killed_by="bool-and-additive-masks-agree",
)
class FillRaisesInHalf(Dense):
    # float16 cannot hold -1e9, and torch raises when it fills with it
    def __call__(self, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.stored = query.dtype
        return super().__call__(query, *rest, **options)

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if not bool(visible.all()):
            scores.to(self.stored).masked_fill(~visible, -1e9)
        return super().hide(scores, visible)


@mistake(
    "own-mask-after-softmax",
    "mask applied to the weights, which no longer sum to one",
    killed_by="a-causal-row-attends-its-prefix",
)
class MaskAfterSoftmax(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return torch.where(scores == -torch.inf, 0.0, scores)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, torch.ones_like(visible)) * visible


@mistake(
    "SPV-01",
    "a row that may read nothing gives NaN",
    killed_by="an-empty-row-gives-the-declared-output",
    source="https://github.com/pytorch/pytorch/issues/27968",
)
class EmptyRowNan(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, torch.ones_like(visible))


@mistake(
    "SPV-02",
    "NaN where the first tile of a row is hidden",
    killed_by="padding-equals-a-shorter-sequence",
    source="https://github.com/ggml-org/llama.cpp/pull/12776",
)
class FirstTileNan(Tiled):
    # exp(-inf - (-inf)), by the running maximum before the first readable key
    def shrink_total(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return super().shrink_total(total, self.spoil(shrink))

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        self.is_empty = grown == -torch.inf
        return grown

    def spoil(self, shrink: torch.Tensor) -> torch.Tensor:
        return shrink.masked_fill(self.is_empty, torch.nan)


@mistake(
    "NUM-02",
    "zeros where the first tile is hidden and all scores are far below zero",
    killed_by="padding-equals-a-shorter-sequence",
    source="https://github.com/Dao-AILab/flash-attention/issues/2082",
)
class GuardKeptAsMaximum(Tiled):
    # the 0 that replaces a maximum of nothing is kept, and later scores are below it
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        return torch.where(grown == -torch.inf, 0.0, grown)


plant_dense(
    "SPV-05",
    "0 * NaN: NaN in a value that may not be read reaches the output",
    Dense(),
    killed_by="unreadable-nan-and-infinity-follow-the-profile",
    source="https://github.com/Dao-AILab/flash-attention/issues/2374",
    masked_keys=MaskedNonfinite.BLOCKED,
    masked_values=MaskedNonfinite.BLOCKED,
)


@mistake(
    "own-nan-made-zero",
    "NaN that comes from hidden values turned into zero at the end",
    killed_by="unreadable-nan-and-infinity-follow-the-profile",
)
class NanMadeZero(Dense):
    # NaN of 0 * NaN becomes a number after the mixture, in which it has spoiled the row
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value).nan_to_num(nan=0.0)


@mistake(
    "own-peak-of-all",
    "the subtracted maximum taken over hidden scores too",
    killed_by="large-later-keys-change-nothing",
)
class MaximumOfAllKeys(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        self.maximum = scores.amax(-1, keepdim=True)
        return super().hide(scores, visible)

    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return self.maximum


@mistake(
    "own-sum-of-all",
    "weights divided by the sum over hidden keys too",
    killed_by="an-extension-changes-no-earlier-row",
)
class SumOfAllKeys(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        self.all_scores = scores
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        peak = self.all_scores.amax(-1, keepdim=True)
        total = torch.exp(self.all_scores - peak).sum(-1, keepdim=True)
        return torch.exp(scores - peak) / torch.where(total > 0, total, 1.0)


@mistake(
    "own-hidden-key-spoils",
    "minus infinity added to a hidden score, so that NaN in a key that may not be read stays",
    killed_by="unreadable-nan-and-infinity-follow-the-profile",
    masked_keys=MaskedNonfinite.BLOCKED,
)
class AddsInfinity(Dense):
    """An attention whose profile declares that keys are blocked, which holds for values alone."""

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return scores + torch.zeros_like(scores).masked_fill(~visible, -torch.inf)


class NanForMask(Dense):
    """An attention that gives NaN for a row that a mask of one kind empties."""

    gives_nan = False

    def __init__(self, is_bool: bool) -> None:
        self.is_bool = is_bool

    def mask(self, attn_mask: Any, is_causal: bool, scores: torch.Tensor) -> Any:
        self.gives_nan = attn_mask is not None and (attn_mask.dtype == torch.bool) == self.is_bool
        return super().mask(attn_mask, is_causal, scores)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        if not self.gives_nan:
            return weights
        return weights.masked_fill(~visible.any(-1, keepdim=True), torch.nan)


plant_dense(
    "own-empty-row-nan-by-float-mask",
    "NaN for rows that a float mask empties, where the profile declares this of bool masks",
    NanForMask(is_bool=False),
    killed_by="an-empty-row-gives-the-declared-output",
    empty_row_bool_mask=EmptyRow.NAN,
)
plant_dense(
    "own-empty-row-nan-by-bool-mask",
    "NaN for rows that a bool mask empties, where the profile declares this of float masks",
    NanForMask(is_bool=True),
    killed_by="an-empty-row-gives-the-declared-output",
    empty_row_float_mask=EmptyRow.NAN,
)


class NanForType(Dense):
    """An attention that gives NaN for a row that no mask empties if the operands have one type.

    The number that hides a key is the largest one of another type, which is infinite in this one.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.stored, self.has_mask = query.dtype, False
        return super().__call__(query, *rest, **options)

    def causal(self, queries: int, keys: int) -> torch.Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)

    def mask(self, attn_mask: Any, is_causal: bool, scores: torch.Tensor) -> Any:
        self.has_mask = attn_mask is not None
        return super().mask(attn_mask, is_causal, scores)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        if self.stored != self.dtype or self.has_mask:
            return weights
        return weights.masked_fill(~visible.any(-1, keepdim=True), torch.nan)


plant_dense(
    "own-empty-causal-row-nan-in-float64",
    "NaN in float64 alone for rows that the causal flag leaves without keys",
    NanForType(torch.float64),
    killed_by="an-empty-row-gives-the-declared-output",
    causal_alignment=CausalAlignment.LOWER_RIGHT,
)
plant_dense(
    "own-empty-window-row-nan-in-half",
    "NaN in float16 alone for rows that a window leaves without keys",
    NanForType(torch.float16),
    killed_by="an-empty-row-gives-the-declared-output",
    features={Feature.WINDOW},
    causal_alignment=CausalAlignment.LOWER_RIGHT,
)
