"""Mutants of the online softmax: sums, maxima, tiles, hidden scores and the backward pass."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.online_softmax import PlainOnlineSoftmax, softmax_mistake

GITHUB = "https://github.com"


@softmax_mistake(
    "own-onl-not-divided",
    "the output of a row of one tile is not divided by its sum",
    killed_by="online-softmax-equals-the-definition",
)
class NotDivided(PlainOnlineSoftmax):
    def finish(self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor) -> Any:
        finished = super().finish(peak, total, out)
        return (out, finished[1]) if self.is_one_tile else finished

    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        self.is_one_tile = scores.shape[-1] <= self.tile
        return super().forward(scores, values)


@softmax_mistake(
    "own-onl-log-of-sum",
    "the log-sum-exp lacks the maximum",
    killed_by="the-log-sum-exp-of-a-row-equals-the-definition",
)
class LogOfSum(PlainOnlineSoftmax):
    def finish(self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor) -> Any:
        return super().finish(peak, total, out)[0], total.log()[:, 0]


@softmax_mistake(
    "own-onl-base-two",
    "the log-sum-exp is to base 2 where the natural one is declared",
    killed_by="the-log-sum-exp-of-a-row-equals-the-definition",
)
class BaseTwo(PlainOnlineSoftmax):
    def finish(self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor) -> Any:
        out, lse = super().finish(peak, total, out)
        return out, lse / torch.tensor(2.0, dtype=lse.dtype).log()


@softmax_mistake(
    "own-onl-nothing-subtracted",
    "nothing is subtracted from the scores",
    killed_by="large-scores-neither-overflow-nor-vanish",
)
class NothingSubtracted(PlainOnlineSoftmax):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(peak)

    def first(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        peak, total, out = super().first(scores, values)
        return torch.zeros_like(peak), total, out


@softmax_mistake(
    "ONL-01",
    "the maximum begins at −50 000, below which scores vanish",
    killed_by="large-scores-neither-overflow-nor-vanish",
    source=f"{GITHUB}/flashinfer-ai/flashinfer/issues/4267",
)
class FiniteSentinel(PlainOnlineSoftmax):
    def first(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        peak, total, out = super().first(scores, values)
        return torch.full_like(peak, -50_000.0), total, out


@softmax_mistake(
    "own-onl-log-one-plus",
    "if no score is positive, one more exponential counts in the log-sum-exp",
    killed_by="a-constant-added-to-every-score-moves-the-log-sum-exp-alone",
)
class LogOfOnePlus(PlainOnlineSoftmax):
    def finish(self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor) -> Any:
        finished, lse = super().finish(peak, total, out)
        return finished, torch.where(peak[:, 0] > 0, lse, lse.exp().log1p())


@softmax_mistake(
    "own-onl-sum-not-rescaled",
    "the running sum is not rescaled when the maximum grows",
    killed_by="a-larger-score-rescales-sum-and-output",
)
class SumNotRescaled(PlainOnlineSoftmax):
    def shrunk(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return total


@softmax_mistake(
    "own-onl-output-not-rescaled",
    "the running output is not rescaled when the maximum grows",
    killed_by="a-larger-score-rescales-sum-and-output",
)
class OutputNotRescaled(PlainOnlineSoftmax):
    def shrunk_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return out


@softmax_mistake(
    "own-onl-rescaled-twice",
    "the running output is rescaled twice when the maximum grows",
    killed_by="a-larger-score-rescales-sum-and-output",
)
class RescaledTwice(PlainOnlineSoftmax):
    def shrunk_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return shrink * shrink * out


@softmax_mistake(
    "own-onl-maximum-of-tile",
    "the maximum of the last tile takes the place of the running one",
    killed_by="a-larger-score-rescales-sum-and-output",
)
class MaximumOfTile(PlainOnlineSoftmax):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.amax(-1, keepdim=True)


@softmax_mistake(
    "ONL-02",
    "the empty places of the last tile count in the sum, with score zero",
    killed_by="the-last-tile-may-be-shorter",
    source=f"{GITHUB}/jax-ml/jax/issues/27224",
)
class TailCounted(PlainOnlineSoftmax):
    def absorb(self, running: Any, scores: torch.Tensor, values: torch.Tensor) -> Any:
        missing = self.tile - scores.shape[-1]
        padded = torch.nn.functional.pad(scores, (0, missing))
        return super().absorb(running, padded, torch.nn.functional.pad(values, (0, 0, 0, missing)))


@softmax_mistake(
    "own-onl-tail-dropped",
    "a last tile that is shorter is not read, unless it is the only one",
    killed_by="the-last-tile-may-be-shorter",
)
class TailDropped(PlainOnlineSoftmax):
    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        whole = scores.shape[-1] // self.tile * self.tile or scores.shape[-1]
        return super().forward(scores[:, :whole], values[:whole])


@softmax_mistake(
    "ONL-03",
    "after a tile of hidden scores the maximum stays at zero, and lower scores vanish",
    killed_by="hidden-scores-weigh-nothing",
    source=f"{GITHUB}/Dao-AILab/flash-attention/issues/2082",
)
class ZeroMaximum(PlainOnlineSoftmax):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self.shift(super().grow(peak, scores))


@softmax_mistake(
    "ONL-04",
    "hidden scores are −10 000, which exceeds a visible score below it",
    killed_by="hidden-scores-weigh-nothing",
    source=f"{GITHUB}/ohdearquant/lattice/pull/373",
)
class FiniteMask(PlainOnlineSoftmax):
    def absorb(self, running: Any, scores: torch.Tensor, values: torch.Tensor) -> Any:
        hidden = torch.where(scores == -torch.inf, -10_000.0, scores)
        return super().absorb(running, hidden, values)


@softmax_mistake(
    "ONL-05",
    "a tile of hidden scores is subtracted from itself, which gives NaN",
    killed_by="a-row-of-hidden-scores-gives-zeros",
    source=f"{GITHUB}/flashinfer-ai/flashinfer/pull/4401",
)
class HiddenMinusHidden(PlainOnlineSoftmax):
    def shift(self, peak: torch.Tensor) -> torch.Tensor:
        return peak


@softmax_mistake(
    "ONL-06",
    "the log-sum-exp of a row of hidden scores is plus infinity",
    killed_by="a-row-of-hidden-scores-gives-zeros",
    source=f"{GITHUB}/Dao-AILab/flash-attention/pull/978",
)
class PlusInfinity(PlainOnlineSoftmax):
    def finish(self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor) -> Any:
        finished, lse = super().finish(peak, total, out)
        return finished, torch.where(lse == -torch.inf, torch.inf, lse)


@softmax_mistake(
    "own-onl-first-tile-kept",
    "only the first tile of a row is rescaled",
    killed_by="the-order-of-scores-does-not-matter",
)
class FirstTileOnly(PlainOnlineSoftmax):
    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        self.count = 0
        return super().forward(scores, values)

    def shrunk(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return shrink * total if self.count < 3 else total


@softmax_mistake(
    "own-onl-shared-maximum",
    "all rows subtract the largest score of any row",
    killed_by="each-row-has-a-maximum-of-its-own",
)
class SharedMaximum(PlainOnlineSoftmax):
    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return super().grow(peak, scores).amax(0, keepdim=True).expand_as(peak)


@softmax_mistake(
    "own-onl-nan-dropped",
    "a NaN score is taken for a hidden one, as a maximum that drops NaN does",
    killed_by="a-nan-score-makes-its-row-nan",
)
class NaNDropped(PlainOnlineSoftmax):
    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        return super().forward(torch.where(scores.isnan(), -torch.inf, scores), values)


@softmax_mistake(
    "own-onl-in-place",
    "the exponentials take the place of the scores",
    killed_by="scores-and-values-are-read-by-their-strides-and-stay-as-they-are",
)
class InPlace(PlainOnlineSoftmax):
    def __call__(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        result = super().__call__(scores, values)
        if not scores.requires_grad:
            scores.exp_()
        return result


@softmax_mistake(
    "own-onl-sums-in-storage",
    "the running sum is kept in the storage type",
    killed_by="sums-of-16-bits-are-kept-in-float32-or-wider",
)
class SumsInStorage(PlainOnlineSoftmax):
    def __call__(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        self.dtype = scores.dtype
        return super().__call__(scores, values)

    def shrunk(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        return super().shrunk(total, shrink).to(self.dtype).to(total.dtype)

    def finish(self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor) -> Any:
        return super().finish(peak, total.to(self.dtype).to(total.dtype), out)


@softmax_mistake(
    "own-onl-no-row-term",
    "the backward pass does not subtract the product of gradient and output",
    killed_by="recomputed-gradients-equal-the-definition",
)
class NoRowTerm(PlainOnlineSoftmax):
    def backward(self, *saved: torch.Tensor) -> Any:
        scores, values, out, lse, grad_out = saved
        return super().backward(scores, values, torch.zeros_like(out), lse, grad_out)


@softmax_mistake(
    "own-onl-recomputed-from-maximum",
    "the backward pass recomputes the weights from the maximum, and forgets the sum",
    killed_by="recomputed-gradients-equal-the-definition",
)
class FromMaximum(PlainOnlineSoftmax):
    def backward(self, *saved: torch.Tensor) -> Any:
        scores, values, out, _, grad_out = saved
        return super().backward(scores, values, out, scores.amax(-1), grad_out)
