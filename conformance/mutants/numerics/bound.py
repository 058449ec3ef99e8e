"""Mutants of NUM that round a step that their declared rounding level does not round."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature


def coarse(numbers: torch.Tensor) -> torch.Tensor:
    """Round to bfloat16 and convert back."""
    return numbers.bfloat16().to(numbers.dtype)


@mistake(
    "own-tanh-by-a-fraction",
    "the tanh of the softcap by a fraction that is good to two digits",
    killed_by="every-capped-score-is-within-its-bound",
    features=(Feature.SOFTCAP,),
)
class TanhByAFraction(Dense):
    def cap(self, scores: torch.Tensor, softcap: float) -> torch.Tensor:
        x = (scores / softcap).clamp(-3, 3)
        return softcap * x * (27 + x * x) / (27 + 9 * x * x)


@mistake(
    "own-log-sum-exp-in-16-bits",
    "the log-sum-exp stored in bfloat16 and widened again",
    killed_by="every-log-sum-exp-is-within-its-bound",
    features=(Feature.LSE,),
)
class LogSumExpIn16Bits(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        return coarse(super().lse(scores))


@mistake(
    "own-slopes-in-16-bits",
    "slope times distance stored in bfloat16, at level fused",
    killed_by="every-biased-score-is-within-its-bound",
    features=(Feature.ALIBI,),
)
class SlopesIn16Bits(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        distance = self.displacement(*scores.shape[-2:]).abs().to(slopes)
        return scores - coarse(slopes[:, None, None] * distance)


@mistake(
    "own-bias-in-16-bits",
    "the float mask stored in bfloat16, whatever its type is",
    killed_by="every-biased-score-is-within-its-bound",
)
class BiasIn16Bits(Dense):
    def add_bias(self, scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return super().add_bias(scores, coarse(bias))


@mistake(
    "own-sinks-in-16-bits",
    "the logits of sinks stored in bfloat16, whatever their type is",
    killed_by="every-sink-is-within-its-bound",
    features=(Feature.SINKS,),
)
class SinksIn16Bits(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().sink(scores, visible, coarse(sinks))


@mistake(
    "own-scores-in-16-bits",
    "scores stored in bfloat16, at level fused",
    killed_by="every-output-is-within-its-bound",
)
class ScoresIn16Bits(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return coarse(super().scores(query, key, scale))


@mistake(
    "own-weights-in-8-bits",
    "weights stored in an 8-bit float before the product with the values",
    killed_by="every-output-is-within-its-bound",
)
class WeightsIn8Bits(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> Any:
        return super().mix(weights.to(torch.float8_e4m3fn).to(weights.dtype), value)


@mistake(
    "own-score-gradients-in-8-bits",
    "gradients of scores stored in an 8-bit float before the product with the keys",
    killed_by="every-gradient-is-within-its-bound",
)
class ScoreGradientsIn8Bits(Explicit):
    def to_query(self, dt: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().to_query(dt.to(torch.float8_e4m3fn).to(dt.dtype), key, scale)


@mistake(
    "own-sums-of-parts-stored",
    "the sum of each 512 weighted values is stored in the storage type before it is divided",
    killed_by="values-of-one-sign-overflow-no-sum",
)
class SumsOfPartsStored(Dense):
    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if scores.shape[-1] == 0:
            return scores
        peak, reads = self.peak(scores).detach(), visible.any(-1, keepdim=True)
        weights = self.exp(scores, torch.where(reads, peak, 0.0))
        self.divisor = torch.where(reads, self.total(weights), 1.0)
        return weights

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if weights.shape[-1] == 0:
            return super().mix(weights, value)
        parts = zip(weights.split(512, -1), value.split(512, -2), strict=True)
        stored = [(part @ values).to(self.stored).to(value.dtype) for part, values in parts]
        return torch.stack(stored).sum(0) / self.divisor

    def __call__(self, query: torch.Tensor, *rest: Any, **options: Any) -> Any:
        self.stored = query.dtype
        return super().__call__(query, *rest, **options)
