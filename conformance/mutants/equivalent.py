"""Equivalent mutants: changes that look like mistakes and are none; no law may fail on them.

Each has a proof. They are not in the catalogue: a law that kills one raises a false alarm.
"""

from dataclasses import dataclass

import torch

from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.spec import Implementation


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """An implementation that differs from a correct one, but only in how it rounds.

    Attributes:
        id: its name.
        title: the change in words.
        proof: that the change makes no difference beyond the error bound.
        subject: the implementation under test.
        source: the address of the report that took it for a mistake; empty if there is none.
    """

    id: str
    title: str
    proof: str
    subject: Implementation
    source: str = ""


class OneAdded(Dense):
    """An attention that adds 1 to readable scores, like a mask of ones and minus infinities."""

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().hide(scores + 1.0, visible)


class LargerShift(Dense):
    """An attention that subtracts the maximum plus 3 before exponentials."""

    def peak(self, scores: torch.Tensor) -> torch.Tensor:
        return super().peak(scores) + 3.0


class ReversedKeys(Dense):
    """An attention that mixes values in reverse order."""

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return weights.flip(-1) @ value.flip(-2)


class BaseTwo(Dense):
    """An attention by powers of two of scores times log₂ e, not by exponentials."""

    def exp(self, scores: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return torch.exp2((scores - shift) * 1.4426950408889634)


class DividedLast(Dense):
    """An attention that mixes values with unnormalised weights and divides by the sum last."""

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        self.sums = weights.new_full((*weights.shape[:3], 1), 0.75)
        return weights * self.sums

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return super().mix(weights, value) / self.sums


class SmallTiles(Tiled):
    """An attention by tiles of two keys: the maximum changes often, few last tiles are full."""

    tile = 2


class ScaledKeys(Dense):
    """An attention that multiplies queries and keys by the root of the scale each."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        root = abs(scale) ** 0.5
        scores: torch.Tensor = (query * root) @ (key * (root if scale >= 0 else -root)).mT
        return scores


EQUIVALENT = tuple(
    Equivalent(
        id=id,
        title=title,
        proof=proof,
        subject=dense(id.replace("-", "_"), attention()),
        source=source,
    )
    for id, title, proof, attention, source in (
        (
            "equivalent-mask-of-ones",
            "a mask of ones and minus infinities in place of zeros",
            "A number that is added to all scores of a row cancels in the softmax; only a sink, a "
            "softcap applied later or the log-sum-exp would change, none of which it claims.",
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
            "Division by the sum of a row is linear; the factor 3/4 rounds once each time, in the "
            "accumulator.",
            DividedLast,
            "",
        ),
        (
            "equivalent-small-tiles",
            "tiles of two keys",
            "Rescalings of a running maximum telescope; their number is within γ of the number of "
            "keys, since each multiplies by a number that is exact or at most one.",
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
"""All equivalent mutants."""
