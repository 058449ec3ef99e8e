"""Mutants that round what the level that they declare does not let them round."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

BOUND = "every-result-is-within-its-bound"


@mistake(
    "own-tanh-by-a-fraction",
    "the tanh of the softcap by a fraction that is good to two digits",
    kills=(BOUND,),
    features=(Feature.SOFTCAP,),
)
class TanhByAFraction(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        x = (scores / softcap).clamp(-3, 3)
        return softcap * x * (27 + x * x) / (27 + 9 * x * x)


@mistake(
    "own-log-sum-exp-in-16-bits",
    "the log-sum-exp stored in bfloat16 and widened again",
    kills=(BOUND,),
    features=(Feature.LSE,),
)
class LogSumExpIn16Bits(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        return lse.bfloat16().to(lse.dtype)


@mistake(
    "own-bias-of-slopes-in-16-bits",
    "slope times distance in bfloat16, at level fused",
    kills=(BOUND,),
    features=(Feature.ALIBI,),
)
class SlopesIn16Bits(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = self.displacement(*scores.shape[-2:]).abs().to(slopes)
        return scores - (slopes[:, None, None] * distance).bfloat16().to(scores.dtype)


@mistake(
    "own-scores-in-16-bits",
    "scores stored in bfloat16, at level fused",
    kills=(BOUND,),
)
class ScoresIn16Bits(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        scores = super().scores(query, key, scale)
        return scores.bfloat16().to(scores.dtype)


@mistake(
    "own-weights-in-8-bits",
    "weights stored in an 8-bit float before they meet the values",
    kills=(BOUND,),
)
class WeightsIn8Bits(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> Any:
        return super().mix(weights.to(torch.float8_e4m3fn).to(weights.dtype), value)
