"""Mutants of GRD: wrong gradients of sinks and slopes."""

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake
from attnspec.spec import Feature


@mistake(
    "own-grad-sink-sign",
    "the gradient of a sink has the wrong sign",
    killed_by="gradients-of-sinks-are-right-if-they-have-any",
    features={Feature.SINKS},
)
class SinkSign(Dense):
    def sink(
        self, scores: torch.Tensor, visible: torch.Tensor, sinks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # the value of a sink, with the derivative -1
        turned = 2 * sinks.detach() - sinks if sinks.requires_grad else sinks
        return super().sink(scores, visible, turned)


@mistake(
    "own-grad-slope-without-distance",
    "the gradient of a slope leaves out the distances",
    killed_by="gradients-of-slopes-are-right-if-they-have-any",
    features={Feature.ALIBI},
)
class SlopeWithoutDistance(Dense):
    def add_alibi(self, scores: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        scores = super().add_alibi(scores, slopes.detach())
        # zero, with the derivative -1 at every key
        return (
            scores - (slopes - slopes.detach())[:, None, None] if slopes.requires_grad else scores
        )
