"""Mutants of GRD: wrong gradients of the log-sum-exp."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense, DenseWithArguments
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature

LSE = {Feature.LSE}


@mistake(
    "own-lse-gradient-of-the-maximum",
    "the log-sum-exp passes its gradient to the largest score alone",
    killed_by="gradients-of-the-log-sum-exp-are-right-if-it-has-any",
    features=LSE,
)
class GradientOfTheMaximum(Dense):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse = super().lse(scores)
        if not scores.requires_grad or not scores.shape[-1]:
            return lse
        peak = scores.amax(-1)
        # the value is the log-sum-exp, the derivative that of the maximum
        return torch.where(peak.isfinite(), lse.detach() + (peak - peak.detach()), lse)


@mistake(
    "own-lse-gradient-to-values",
    "the backward pass adds the gradient of the log-sum-exp to that of the values",
    killed_by="gradients-of-the-log-sum-exp-are-right-if-it-has-any",
    features=LSE,
)
class GradientToValues(DenseWithArguments):
    def lse(self, scores: torch.Tensor) -> torch.Tensor:
        lse, value = super().lse(scores), self.call["value"]
        if not value.requires_grad or not value.numel():
            return lse
        first: torch.Tensor = value.flatten()[0].to(lse.dtype)
        return lse + (first - first.detach())


class _OneGradient(torch.autograd.Function):
    """Return output and log-sum-exp; the backward pass forgets one gradient for the other."""

    @staticmethod
    def forward(
        ctx: Any, out: torch.Tensor, lse: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        return out.clone(), lse.clone()

    @staticmethod
    def backward(
        ctx: Any, *incoming: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        of_out, of_lse = incoming
        return (None if of_lse is not None else of_out), of_lse


@mistake(
    "own-lse-gradient-or-the-other",
    "with a gradient of the log-sum-exp, that of the output is forgotten",
    killed_by="gradients-of-output-and-log-sum-exp-add",
    features=LSE,
)
class GradientOfOneResult(Dense):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        result = super().__call__(*arguments, **options)
        return _OneGradient.apply(*result) if isinstance(result, tuple) else result  # type: ignore[no-untyped-call]
