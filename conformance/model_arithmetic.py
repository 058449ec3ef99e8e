"""Values with their worst error: what the bound of a whole model is made of.

An `Enclosure` is an exact real result together with a radius: every conforming computation of it
lies within. Each function below takes enclosures and gives the enclosure of its result. The radius
holds for any order of summation, with or without fused multiply-add.

The radius of a result is the sum of two parts, written out in each docstring.

- *carried*: how far exact arithmetic moves the result when the operands move within their radii.
  Nothing is cut off after the first order.
- *fresh*: the rounding of this step itself, computed at the far end of the operands' radii.

Symbols: *u* unit roundoff, γₙ = nu/(1 − nu), *f* the absolute error of an underflow, |x| ⊕ r the
largest magnitude inside an enclosure.

Source:
    Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 2 and 3
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64

_UNDERFLOW = {torch.float64: 2.0**-1018, torch.float32: 2.0**-122}
"""Results below the smallest normal number may be flushed to zero, and exp may flush a bit earlier."""

UNKNOWN = 1e100
"""The radius of a result of which nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """How a conforming model rounds.

    Attributes:
        u: unit roundoff, rounding to nearest.
        floor: absolute error where a result underflows.
        elementary: error of exp, tanh and erf in units of `u`, as in `attnspec.spec.Rounding`.
    """

    u: float
    floor: float
    elementary: float = 32.0

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Arithmetic":
        """The arithmetic of a dtype.

        Raises:
            ValueError: for a dtype other than float32 and float64.
        """
        if dtype not in _UNDERFLOW:
            raise ValueError(f"a model is judged in float32 or float64, got {dtype}")
        return cls(u=torch.finfo(dtype).eps / 2, floor=_UNDERFLOW[dtype])

    def gamma(self, count: int) -> float:
        """γ of `count` roundings: the relative error that they can add up to."""
        total = count * self.u
        return total / (1 - total) if total < 1 else math.inf


@dataclass(frozen=True)
class Enclosure:
    """An exact result and how far from it a conforming computation may be, element by element."""

    value: Float64[torch.Tensor, "..."]
    radius: Float64[torch.Tensor, "..."]

    def __post_init__(self) -> None:
        # beyond any use, yet finite: a row of which nothing is known times a zero is still zero
        known = self.radius.nan_to_num(nan=UNKNOWN, posinf=UNKNOWN).clamp(max=UNKNOWN)
        object.__setattr__(self, "radius", known)

    @classmethod
    def exact(cls, value: torch.Tensor) -> "Enclosure":
        """A number that is given, not computed."""
        value = value.detach().double()
        return cls(value, torch.zeros_like(value))

    @property
    def most(self) -> torch.Tensor:
        """The largest magnitude inside: |x| ⊕ r."""
        return self.value.abs() + self.radius

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Enclosure":
        """Move elements about (reshape, index) without computing with them."""
        return Enclosure(move(self.value), move(self.radius))


def rounded(value: torch.Tensor, carried: torch.Tensor, arithmetic: Arithmetic) -> Enclosure:
    """Round once: fresh u(|x| ⊕ carried) + f."""
    fresh = arithmetic.u * (value.abs() + carried) + arithmetic.floor
    return Enclosure(value, carried + fresh)


def add(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Sum: carried r + s, rounded once."""
    return rounded(left.value + right.value, left.radius + right.radius, arithmetic)


def multiply(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Product: carried (|x| ⊕ r)s + r|y|, rounded once."""
    carried = left.most * right.radius + left.radius * right.value.abs()
    return rounded(left.value * right.value, carried, arithmetic)


def matmul(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Matrix product of inner length n: carried (|x| ⊕ r)s + r|y|, fresh γₙ(|x| ⊕ r)(|y| ⊕ s) + nf.

    Args:
        left: the rows.
        right: the columns.
        arithmetic: how it rounds.
        spare: further roundings of each product, such as a scale.
    """
    length = left.value.shape[-1]
    gamma = arithmetic.gamma(length + spare)
    carried = left.most @ right.radius + left.radius @ right.value.abs()
    fresh = gamma * (left.most @ right.most) + (length + spare) * arithmetic.floor
    return Enclosure(left.value @ right.value, carried + fresh)


def total(given: Enclosure, arithmetic: Arithmetic, dim: int) -> Enclosure:
    """Sum over one axis of length n: carried Σr, fresh γₙ Σ(|x| ⊕ r)."""
    gamma = arithmetic.gamma(given.value.shape[dim])
    return Enclosure(
        given.value.sum(dim), given.radius.sum(dim) + gamma * given.most.sum(dim)
    )
