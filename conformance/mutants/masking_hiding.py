"""Mutants of MSK, last part: how a key is hidden, and rows that read nothing."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import plant_dense
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.spec import MaskedNonfinite

PREFIX = "a-causal-row-attends-its-prefix"
LARGE = "a-large-future-moves-nothing"
EXTENSION = "an-extension-changes-no-earlier-row"
BOTH = "mask-and-causal-flag-both-apply"
SUPPORT = "a-query-reads-exactly-its-keys"
SPELLING = "bool-and-additive-masks-agree"
POLARITY = "true-means-readable"
PADDING = "padding-equals-a-shorter-sequence"
EMPTY = "an-empty-row-gives-the-profiles-answer"
UNREADABLE = "unreadable-nan-and-infinity-follow-the-profile"


class _Filled(Dense):
    """Hide a key by a finite score."""

    def __init__(self, score: float) -> None:
        self.score = score

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(~visible, self.score)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, torch.ones_like(visible))


class _FillRaises(Dense):
    # -1e9 is no float16, and torch refuses to fill with it.
    def __call__(self, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.stored = query.dtype
        return super().__call__(query, *rest, **options)

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if not bool(visible.all()):
            scores.to(self.stored).masked_fill(~visible, -1e9)
        return super().hide(scores, visible)


class _AfterSoftmax(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return torch.where(scores == -torch.inf, 0.0, scores)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, torch.ones_like(visible)) * visible


class _EmptyNan(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, torch.ones_like(visible))


class _Unguarded(Tiled):
    # exp(-inf - (-inf)): the running maximum before the first key that may be read.
    def shrink_total(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return super().shrink_total(total, self.spoil(shrink))

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        self.nothing = grown == -torch.inf
        return grown

    def spoil(self, shrink: torch.Tensor) -> torch.Tensor:
        return shrink.masked_fill(self.nothing, torch.nan)


class _GuardRemembered(Tiled):
    # The 0 that stands in for a maximum of nothing is kept, and no later score is above it.
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        return torch.where(grown == -torch.inf, 0.0, grown)


class _NanMadeZero(Dense):
    # 0 * NaN is kept out by turning every NaN into a number, after it has done its damage.
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value).nan_to_num(nan=0.0)


class _PeakOfAll(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        self.highest = scores.amax(-1, keepdim=True)
        return super().hide(scores, visible)

    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return self.highest


class _SumOfAll(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        self.all = scores
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        peak = self.all.amax(-1, keepdim=True)
        total = torch.exp(self.all - peak).sum(-1, keepdim=True)
        return torch.exp(scores - peak) / torch.where(total > 0, total, 1.0)


def _plant(
    id: str, title: str, attention: Any, *kills: str, report: str = "", **profile: Any
) -> None:
    source = f"https://github.com/{report}" if report else ""
    plant_dense(id, title, attention, *kills, source=source, **profile)


_plant(
    "own-hidden-minus-ten",
    "hidden scores set to -10",
    _Filled(-10.0),
    *(SUPPORT, LARGE, POLARITY, PREFIX, EMPTY),
)
_plant(
    "own-hidden-minus-hundred",
    "hidden scores set to -100",
    _Filled(-100.0),
    *(LARGE, PADDING, EMPTY),
)
_plant(
    "own-empty-row-mean",
    "hidden scores set to -1e9, so that an empty row gives the mean",
    _Filled(-1e9),
    EMPTY,
)
_plant(
    "own-fill-raises-in-half",
    "hidden scores set to -1e9, which float16 cannot hold",
    _FillRaises(),
    *(SPELLING, EMPTY, PREFIX),
)
_plant(
    "own-mask-after-softmax",
    "mask applied to the weights, which no longer sum to one",
    _AfterSoftmax(),
    *(PREFIX, POLARITY, PADDING, BOTH),
)
_plant(
    "SPV-01",
    "a row that may read nothing gives NaN",
    _EmptyNan(),
    *(EMPTY, BOTH),
    report="pytorch/pytorch/issues/27968",
)
_plant(
    "SPV-02",
    "NaN where the first tile of a row is hidden",
    _Unguarded(),
    *(PADDING, EMPTY),
    report="ggml-org/llama.cpp/pull/12776",
)
_plant(
    "NUM-02",
    "zeros where the first tile is hidden and all scores are far below zero",
    _GuardRemembered(),
    PADDING,
    report="Dao-AILab/flash-attention/issues/2082",
)
_plant(
    "SPV-05",
    "0 * NaN: NaN in a value that may not be read reaches the output",
    Dense(),
    UNREADABLE,
    report="Dao-AILab/flash-attention/issues/2374",
    masked_nonfinite=MaskedNonfinite.BLOCKED,
)
_plant(
    "own-nan-made-zero",
    "NaN that comes from hidden values turned into zero at the end",
    _NanMadeZero(),
    *(UNREADABLE, "a-readable-nan-value-stays-visible"),
)
_plant(
    "own-peak-of-all",
    "the subtracted maximum taken over hidden scores too",
    _PeakOfAll(),
    LARGE,
)
_plant(
    "own-sum-of-all",
    "weights divided by the sum over hidden keys too",
    _SumOfAll(),
    *(PREFIX, EXTENSION, SUPPORT),
)
