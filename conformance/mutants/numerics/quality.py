"""Mutants of NUM that are within the bound on generic inputs, but whose errors are not random."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit, Saved
from attnspec.conformance.mutants.planting import mistake

SHORT = 64
"""Largest length without the mistake."""


@mistake(
    "own-scale-in-bfloat16-in-long-calls",
    "the kernel for long calls in bfloat16 rounds the scale as far as bfloat16 can",
    killed_by="the-errors-of-the-output-look-random",
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
    killed_by="the-errors-of-gradients-look-random",
)
class LogSumExpOffOnTheWayBack(Explicit):
    def weights_again(
        self, scores: torch.Tensor, visible: torch.Tensor, saved: Saved
    ) -> torch.Tensor:
        is_off = saved.query.dtype == torch.bfloat16 and min(scores.shape[-2:]) > SHORT
        return super().weights_again(scores + 0.005 if is_off else scores, visible, saved)
