"""Mutants that stay within the bound on generic inputs, where their errors give them away."""

from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.explicit import Explicit, Pass
from attnspec.conformance.mutants.planting import mistake

OUTPUT = "the-errors-of-the-output-look-random"
GRADIENTS = "the-errors-of-gradients-look-random"

SHORT = 64
"""Up to this length the mistakes are not made."""


@mistake(
    "own-scale-in-bfloat16-in-long-calls",
    "the kernel for long calls in bfloat16 rounds the scale as far as bfloat16 can",
    kills=(OUTPUT,),
)
class ScaleInBfloat16InLongCalls(Dense):
    def __call__(self, *operands: Any, **options: Any) -> Any:
        query, key = operands[:2]
        if query.dtype == torch.bfloat16 and min(query.shape[2], key.shape[2]) > SHORT:
            scale = self.scale(query, key, options.get("scale"))
            options = options | {"scale": scale * (1 + 0.9 * 2.0**-8)}
        return super().__call__(*operands, **options)


@mistake(
    "own-log-sum-exp-off-on-the-way-back",
    "weights of long calls in bfloat16 rebuilt from a log-sum-exp that is 0.005 too small",
    kills=(GRADIENTS,),
)
class LogSumExpOffOnTheWayBack(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, done: Pass
    ) -> torch.Tensor:
        is_off = done.query.dtype == torch.bfloat16 and min(scores.shape[-2:]) > SHORT
        return super().weights_again(scores + 0.005 if is_off else scores, visible, done)
