"""Mutants of ATT: the log-sum-exp has another base, shift, type or place than it should."""

import math
from typing import Any

import torch

from attnspec.conformance.mutants.attention_pairs import Noticing
from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.spec import Feature

GITHUB = "https://github.com"
LSE = {Feature.LSE}
VALUE = "log-sum-exp-equals-the-definition"
COUNT = "log-sum-exp-of-equal-scores-counts-the-keys"
EMPTY = "an-empty-row-has-the-log-sum-exp-of-nothing"
MOVES = "log-sum-exp-moves-with-all-scores"
BIAS = "log-sum-exp-moves-with-the-bias"
SAME = "asking-for-the-log-sum-exp-changes-no-output"
WEIGHTS = "log-sum-exp-normalises-the-weights"
HALVES = "two-halves-merge-into-the-whole"
PARTS = "many-uneven-parts-merge-into-the-whole"
HIDDEN = "a-part-that-is-hidden-weighs-nothing"


@mistake(
    "NUM-07",
    "the log-sum-exp is to base 2",
    kills=(VALUE, COUNT, MOVES, BIAS, WEIGHTS, HALVES, PARTS, HIDDEN),
    source=f"{GITHUB}/flashinfer-ai/flashinfer/pull/4547",
    features=LSE,
)
class BaseTwo(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores) / math.log(2)


@mistake(
    "own-lse-without-maximum",
    "the maximum is not added back",
    kills=(VALUE, MOVES, BIAS, WEIGHTS, HALVES, PARTS, HIDDEN),
    source=f"{GITHUB}/Dao-AILab/flash-attention/issues/404",
    features=LSE,
)
class WithoutMaximum(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        if scores.shape[-1] == 0:
            return super().lse(scores)
        peak = scores.amax(-1)
        return super().lse(scores) - torch.where(peak == -torch.inf, 0.0, peak)


@mistake(
    "own-lse-maximum-alone",
    "the maximum stands for the log-sum-exp",
    kills=(VALUE, COUNT, WEIGHTS, HALVES, PARTS, HIDDEN),
    features=LSE,
)
class MaximumAlone(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.amax(-1) if scores.shape[-1] else super().lse(scores)


@mistake(
    "own-lse-sum",
    "the sum comes back without its logarithm",
    kills=(VALUE, COUNT, EMPTY, MOVES, BIAS, WEIGHTS, HALVES, PARTS),
    features=LSE,
)
class SumAlone(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).exp()


@mistake(
    "own-lse-negated",
    "the negative of the log-sum-exp comes back",
    kills=(VALUE, COUNT, EMPTY, MOVES, BIAS, WEIGHTS),
    features=LSE,
)
class Negated(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return -super().lse(scores)


@mistake(
    "own-lse-mean",
    "the logarithm of the mean comes back, not of the sum",
    kills=(VALUE, COUNT, WEIGHTS, PARTS, HALVES),
    features=LSE,
)
class LogMean(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores) - math.log(max(scores.shape[-1], 1))


@mistake(
    "own-lse-narrow",
    "the log-sum-exp is stored in the type of the values",
    kills=(VALUE, COUNT, SAME),
    features=LSE,
)
class Narrow(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        given = super().__call__(query, key, value, *rest, **options)
        return (given[0], given[1].to(value.dtype)) if options.get("return_lse") else given


@mistake(
    "own-lse-rounded",
    "the log-sum-exp passes through bfloat16",
    kills=(VALUE, COUNT, MOVES, BIAS, WEIGHTS, HALVES, PARTS, HIDDEN),
    features=LSE,
)
class Rounded(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).bfloat16().to(scores.dtype)


@mistake(
    "own-lse-transposed",
    "queries come before heads",
    kills=(VALUE, COUNT, SAME),
    features=LSE,
)
class HeadsAndQueriesSwapped(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).transpose(1, 2).contiguous()


@mistake(
    "own-lse-column",
    "the log-sum-exp keeps an axis of one key",
    kills=(VALUE, COUNT, SAME),
    features=LSE,
)
class Column(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores)[..., None]


@mistake(
    "own-lse-empty-row-zero",
    "a row that reads nothing has the log-sum-exp 0",
    kills=(EMPTY, HIDDEN),
    features=LSE,
)
class EmptyRowZero(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        return torch.where(lse == -torch.inf, 0.0, lse)


@mistake(
    "own-lse-empty-row-finite",
    "a row that reads nothing has the log-sum-exp -10000",
    kills=(EMPTY, HIDDEN),
    source=f"{GITHUB}/flashinfer-ai/flashinfer/issues/4450",
    features=LSE,
)
class EmptyRowFinite(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores).clamp(min=-1e4)


@mistake(
    "own-lse-empty-row-nan",
    "a row that reads nothing has the log-sum-exp NaN",
    kills=(EMPTY, HIDDEN),
    features=LSE,
)
class EmptyRowNan(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        return torch.where(lse == -torch.inf, torch.nan, lse)


@mistake(
    "own-lse-of-hidden-keys",
    "keys that may not be read are counted",
    kills=(VALUE, COUNT, EMPTY, HIDDEN),
    features=LSE,
)
class HiddenCounted(Dense):
    before: torch.Tensor

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        self.before = scores
        return super().hide(scores, visible)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(self.before)


@mistake(
    "own-lse-of-padding",
    "keys that fill up a tile of 8 are counted with a score of zero",
    kills=(VALUE, COUNT, WEIGHTS, HALVES, PARTS),
    features=LSE,
)
class PaddingCounted(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(torch.nn.functional.pad(scores, (0, -scores.shape[-1] % 8)))


@mistake(
    "own-lse-without-sink",
    "the sink is missing from the log-sum-exp alone",
    kills=(VALUE, COUNT, EMPTY, HALVES),
    features={Feature.LSE, Feature.SINKS},
)
class WithoutSink(Noticing):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return super().lse(scores if self.given.get("sinks") is None else scores[..., :-1])


@mistake(
    "own-lse-before-softcap",
    "the log-sum-exp is that of the scores before the softcap",
    kills=(VALUE, BIAS, WEIGHTS, HALVES),
    features={Feature.LSE, Feature.SOFTCAP},
)
class BeforeSoftcap(Noticing):
    moved: torch.Tensor | float = 0.0

    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        capped = super().cap(scores, softcap)
        self.moved = scores - capped
        return capped

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        if self.given.get("softcap") is None:
            return super().lse(scores)
        keys = self.given["key"].shape[2]
        return super().lse(torch.cat([scores[..., :keys] + self.moved, scores[..., keys:]], -1))


@mistake(
    "own-lse-bias-of-one",
    "readable keys get a bias of 1 and hidden ones minus infinity: softmax does not feel it",
    kills=(VALUE, COUNT, WEIGHTS),
    source=f"{GITHUB}/tinygrad/tinygrad/pull/2425",
    features=LSE,
)
class BiasOfOne(Noticing):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores + 1 if self.given.get("is_causal") else scores, visible)


@mistake(
    "own-lse-stale-maximum",
    "the sum is measured against the maximum of all tiles but the last",
    kills=(VALUE, HALVES, PARTS),
    features=LSE,
)
class StaleMaximum(Tiled):
    before: torch.Tensor | None = None

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        grown = super().grow(peak, scores)
        self.before = torch.where(peak == -torch.inf, grown, peak)
        return grown

    def tiled_lse(self, peak: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return super().tiled_lse(peak if self.before is None else self.before, total)


@mistake(
    "own-lse-output-unnormalised",
    "the output is not divided by its sum where the log-sum-exp is asked for",
    kills=(VALUE, SAME, WEIGHTS, HALVES, PARTS, HIDDEN),
    features=LSE,
)
class Unnormalised(Noticing):
    def total(self, weights: torch.Tensor) -> torch.Tensor:
        total = super().total(weights)
        return torch.ones_like(total) if self.given.get("return_lse") else total


@mistake(
    "own-lse-output-without-causal-flag",
    "the path that gives the log-sum-exp forgets the causal flag",
    kills=(VALUE, SAME, HALVES),
    source=f"{GITHUB}/keras-team/keras/issues/23038",
    features=LSE,
)
class FlagForgotten(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if options.get("return_lse"):
            options.pop("is_causal", None)
        return super().__call__(query, key, value, *rest, **options)


@mistake(
    "own-lse-keys-centred",
    "the mean of all keys is taken off them, which only the log-sum-exp feels",
    kills=(VALUE, MOVES, WEIGHTS, HALVES, PARTS),
    features=LSE,
)
class KeysCentred(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query, key - key.mean(2, keepdim=True), scale)


@mistake(
    "own-lse-without-bias",
    "a float mask is missing from the log-sum-exp",
    kills=(VALUE, BIAS),
    features=LSE,
)
class WithoutBias(Noticing):
    added: torch.Tensor | float = 0.0

    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        self.added = bias.masked_fill(bias == -torch.inf, 0.0)
        return super().add_bias(scores, bias)

    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        mask = self.given.get("attn_mask")
        if mask is None or mask.dtype == torch.bool or self.given.get("sinks") is not None:
            return super().lse(scores)
        return super().lse(scores - self.added)
