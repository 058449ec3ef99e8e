"""Mutants that round what the level that they declare does not let them round."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.explicit import Explicit
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

OUTPUT = "every-output-is-within-its-bound"
LSE = "every-log-sum-exp-is-within-its-bound"
CAP = "a-capped-score-errs-no-more-than-its-bound"
BIAS = "a-biased-score-errs-no-more-than-its-bound"
SINK = "a-sink-errs-no-more-than-its-bound"
GRADIENT = "every-gradient-is-within-its-bound"


def coarse(numbers: torch.Tensor) -> torch.Tensor:
    """Round to bfloat16, and come back."""
    return numbers.bfloat16().to(numbers.dtype)


@mistake(
    "own-tanh-by-a-fraction",
    "the tanh of the softcap by a fraction that is good to two digits",
    kills=(CAP,),
    features=(Feature.SOFTCAP,),
)
class TanhByAFraction(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        x = (scores / softcap).clamp(-3, 3)
        return softcap * x * (27 + x * x) / (27 + 9 * x * x)


@mistake(
    "own-log-sum-exp-in-16-bits",
    "the log-sum-exp stored in bfloat16 and widened again",
    kills=(LSE,),
    features=(Feature.LSE,),
)
class LogSumExpIn16Bits(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return coarse(super().lse(scores))


@mistake(
    "own-slopes-in-16-bits",
    "slope times distance stored in bfloat16, at level fused",
    kills=(BIAS,),
    features=(Feature.ALIBI,),
)
class SlopesIn16Bits(Dense):
    def lean(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = self.displacement(*scores.shape[-2:]).abs().to(slopes)
        return scores - coarse(slopes[:, None, None] * distance)


@mistake(
    "own-bias-in-16-bits",
    "the float mask stored in bfloat16, whatever its type is",
    kills=(BIAS,),
)
class BiasIn16Bits(Dense):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return super().add_bias(scores, coarse(bias))


@mistake(
    "own-sinks-in-16-bits",
    "the logits of sinks stored in bfloat16, whatever their type is",
    kills=(SINK,),
    features=(Feature.SINKS,),
)
class SinksIn16Bits(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, coarse(sinks))


@mistake("own-scores-in-16-bits", "scores stored in bfloat16, at level fused", kills=(OUTPUT,))
class ScoresIn16Bits(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return coarse(super().scores(query, key, scale))


@mistake(
    "own-weights-in-8-bits",
    "weights stored in an 8-bit float before they meet the values",
    kills=(OUTPUT,),
)
class WeightsIn8Bits(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> Any:
        return super().mix(weights.to(torch.float8_e4m3fn).to(weights.dtype), value)


@mistake(
    "own-score-gradients-in-8-bits",
    "gradients of scores stored in an 8-bit float before they meet the keys",
    kills=(GRADIENT,),
)
class ScoreGradientsIn8Bits(Explicit):
    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_query(dt.to(torch.float8_e4m3fn).to(dt.dtype), key, scale)
