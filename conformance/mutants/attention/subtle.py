"""Mutants of ATT that pass usual tolerances, or tests with positive numbers only."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake


@mistake(
    "own-scale-of-one-more-channel",
    "the default scale is 1/sqrt(d_head + 1)",
    killed_by="output-equals-the-definition",
)
class ScaleOfOneMore(Dense):
    def scale(self, query: torch.Tensor, value: torch.Tensor, scale: float | None) -> float:
        return (query.shape[-1] + 1) ** -0.5 if scale is None else scale


@mistake(
    "own-future-key-in-the-first-row",
    "the first query reads one key of the future, and no other query does",
    killed_by="a-causal-row-attends-its-prefix",
)
class FirstRowLooksAhead(Dense):
    def causal(self, queries: int, keys: int) -> torch.Tensor:
        visible = super().causal(queries, keys)
        visible[:1, :2] = True
        return visible


@mistake(
    "own-last-key-in-the-last-row",
    "the last query does not read the last key, and all others do",
    killed_by="output-equals-the-definition",
)
class LastRowLacksTheLast(Dense):
    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        visible = visible.clone()
        if visible.shape[-1] > 1:
            visible[..., -1:, -1:] = False
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)


@mistake(
    "own-output-a-thousandth-up",
    "a thousandth is added to every element of the output",
    killed_by="output-equals-the-definition",
)
class ThousandthUp(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # times the sum of weights, so that a row that reads nothing stays zero
        return super().mix(weights, value) + 0.001 * weights.sum(-1, keepdim=True)


@mistake(
    "own-output-a-hundredth-larger",
    "the output is one percent too large",
    killed_by="output-equals-the-definition",
)
class HundredthLarger(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return 1.01 * super().mix(weights, value)


def _last_element(out: torch.Tensor, number: float) -> torch.Tensor:
    """Fill the last batch element with a number if there are several elements."""
    if out.shape[0] < 2:
        return out
    return torch.cat([out[:-1], torch.full_like(out[-1:], number)])


@mistake(
    "own-last-batch-element-nan",
    "the last batch element is NaN",
    killed_by="output-equals-the-definition",
)
class LastElementNaN(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return _last_element(super().mix(weights, value), torch.nan)


@mistake(
    "own-last-batch-element-unwritten",
    "the last batch element is never written, and holds what was there before",
    killed_by="output-equals-the-definition",
)
class LastElementUnwritten(Dense):
    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        return _last_element(super().finish(out, value), 0.75)


@mistake(
    "own-weights-in-16-bits",
    "weights of float32 calls are multiplied by the values in bfloat16",
    killed_by="output-equals-the-definition",
)
class WeightsIn16Bits(Dense):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if weights.dtype == torch.float64:
            return super().mix(weights, value)
        return super().mix(weights.to(torch.bfloat16).to(weights.dtype), value)


@mistake(
    "own-softmax-in-the-storage-type",
    "the softmax is computed in the storage type, where a wide one is declared",
    killed_by="output-equals-the-definition",
)
class NarrowSoftmax(Dense):
    def __call__(self, query: torch.Tensor, *operands: Any, **options: Any) -> Any:
        self.stored = query.dtype
        return super().__call__(query, *operands, **options)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores.to(self.stored), visible).to(scores.dtype)


@mistake(
    "own-scores-of-magnitudes",
    "queries and keys lose their signs",
    killed_by="output-equals-the-definition",
)
class Magnitudes(Dense):
    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return super().scores(query.abs(), key.abs(), scale)
