"""Equivalent mutants: they look like mistakes and are none, so that no law may break on them.

Each has its proof. They are kept apart from the catalogue: what kills one is a false alarm.
"""

from dataclasses import dataclass

import torch

from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.spec import Implementation


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """An implementation that differs from a correct one, but not in its results.

    Attributes:
        id: its name.
        title: what was changed.
        proof: why it makes no difference beyond the error bound.
        subject: what the laws judge.
        source: the public thread that took it for a mistake, where there is one.
    """

    id: str
    title: str
    proof: str
    subject: Implementation
    source: str = ""


class OneAdded(Dense):
    """Scores that may be read get 1 added, as by a mask of ones and minus infinities."""

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores + 1.0, visible)


class LargerShift(Dense):
    """The number taken off before exponentials is not the maximum, but 3 more."""

    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return super().peak(scores) + 3.0


class ReversedKeys(Dense):
    """Keys, values and the columns of the scores in reverse order."""

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return weights.flip(-1) @ value.flip(-2)


class BaseTwo(Dense):
    """Powers of two of scores times log₂ e in place of exponentials."""

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if scores.shape[-1] == 0:
            return scores
        is_row = visible.any(-1, keepdim=True)
        shifted = scores - torch.where(is_row, self.peak(scores), 0.0)
        weights = torch.exp2(shifted * 1.4426950408889634)
        return weights / torch.where(is_row, self.total(weights), 1.0)


class DividedLast(Dense):
    """Values are mixed with unnormalised weights, and the sum is divided by at the end."""

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        self.sums = weights.new_full((*weights.shape[:3], 1), 0.75)
        return weights * self.sums

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value) / self.sums


class SmallTiles(Tiled):
    """Tiles of two keys: the maximum changes often, and the last tile is seldom full."""

    tile = 2


class ScaledKeys(Dense):
    """The scale is split between queries and keys."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        root = abs(scale) ** 0.5
        scores: torch.Tensor = (query * root) @ (key * (root if scale >= 0 else -root)).mT
        return scores


EQUIVALENT = tuple(
    Equivalent(
        id=id, title=title, proof=proof, subject=dense(id.replace("-", "_"), base()), source=source
    )
    for id, title, proof, base, source in (
        (
            "equivalent-mask-of-ones",
            "a mask of ones and minus infinities in place of zeros",
            "Softmax does not feel a number that is added to all scores of a row; only a sink, a "
            "softcap applied later or the log-sum-exp would, none of which it claims.",
            OneAdded,
            "https://github.com/tinygrad/tinygrad/pull/2425",
        ),
        (
            "equivalent-larger-shift",
            "another number than the maximum taken off before exponentials",
            "Any common number cancels between a weight and the sum; three more than the maximum "
            "makes every exponential smaller by e³, far from any underflow that matters.",
            LargerShift,
            "",
        ),
        (
            "equivalent-reversed-keys",
            "values mixed from the last to the first",
            "Addition is commutative, and the error bound holds for any order.",
            ReversedKeys,
            "",
        ),
        (
            "equivalent-base-two",
            "powers of two in place of exponentials",
            "exp(x) = 2^(x log₂ e); the bound has a rounding for the change of base.",
            BaseTwo,
            "",
        ),
        (
            "equivalent-divided-last",
            "the row sum divided by after values are mixed",
            "Division by the sum of a row is linear; the factor 3/4 rounds once each way, in the "
            "accumulator.",
            DividedLast,
            "",
        ),
        (
            "equivalent-small-tiles",
            "tiles of two keys",
            "Rescalings of a running maximum telescope; how many there are is within γ of the "
            "number of keys, since each multiplies by a number that is exact or at most one.",
            SmallTiles,
            "",
        ),
        (
            "equivalent-split-scale",
            "the root of the scale applied to queries and to keys",
            "The product of two roots is the scale; the bound allows the scale before, after or "
            "on both sides of the product.",
            ScaledKeys,
            "",
        ),
    )
)
"""All of them."""
