"""Values with their worst error: what the bound of a whole model is made of.

An `Enclosure` is an exact real result together with a radius: every conforming computation of it
lies within. Each function below takes enclosures and gives the enclosure of its result. The radius
holds for any order of summation, with or without fused multiply-add.

The radius of a result is the sum of two parts, written out in each docstring.

- *carried*: how far exact arithmetic moves the result when the operands move within their radii.
  Nothing is cut off after the first order.
- *fresh*: the rounding of this step itself, computed at the far end of the operands' radii.

A radius element by element grows with the absolute values of a matrix, which forgets that errors
of both signs cancel. So an enclosure also bounds the Euclidean norm of the error along the last
axis, which grows with the spectral norm only; each of the two sharpens the other.

Symbols: *u* unit roundoff, γₙ = nu/(1 − nu), *f* the absolute error of an underflow, |x| ⊕ r the
largest magnitude inside an enclosure,
‖x‖ the Euclidean norm along the last axis, ν the bound of the error's norm, ‖W‖₂ the spectral norm.

Source:
    Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 2 and 3
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64

_UNDERFLOW = {torch.float64: 2.0**-500, torch.float32: 2.0**-122}
"""Results below the smallest normal number may be flushed to zero, and exp may flush a bit earlier.
Far above that in float64, so that the square of this number does not vanish in turn."""

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
    """An exact result and how far from it a conforming computation may be.

    Attributes:
        value: the exact result (to float64 accuracy).
        radius: the largest error of each element.
        norm: the largest Euclidean norm of the errors along the last axis; where it is not given,
            that of the radii.
    """

    value: Float64[torch.Tensor, "..."]
    radius: Float64[torch.Tensor, "..."]
    norm: Float64[torch.Tensor, "..."] | None = None

    def __post_init__(self) -> None:
        radius = _known(self.radius)
        longest = _known(euclidean(radius))
        norm = longest if self.norm is None else torch.minimum(_known(self.norm), longest)
        object.__setattr__(self, "norm", norm)
        object.__setattr__(self, "radius", torch.minimum(radius, norm))

    @classmethod
    def exact(cls, value: torch.Tensor) -> "Enclosure":
        """A number that is given, not computed."""
        value = value.detach().double()
        return cls(value, torch.zeros_like(value))

    @property
    def most(self) -> torch.Tensor:
        """The largest magnitude inside: |x| ⊕ r."""
        return self.value.abs() + self.radius

    @property
    def slack(self) -> torch.Tensor:
        """The norm ν, of shape (..., 1)."""
        assert self.norm is not None
        return self.norm

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Enclosure":
        """Move elements about (reshape, index) without computing with them."""
        return Enclosure(move(self.value), move(self.radius))


def _known(radius: torch.Tensor) -> torch.Tensor:
    """A radius that covers the rounding of its own reckoning, and is finite.

    A row of which nothing is known is given a radius beyond any use, so that times zero it is zero.
    """
    wider = radius * (1 + 2.0**-40)
    return wider.nan_to_num(nan=UNKNOWN, posinf=UNKNOWN).clamp(max=UNKNOWN)


def euclidean(x: torch.Tensor) -> torch.Tensor:
    """‖x‖ along the last axis, which stays with length 1."""
    return x.square().sum(-1, keepdim=True).sqrt()


def enclose(
    value: torch.Tensor, carried: torch.Tensor, norm: torch.Tensor, fresh: torch.Tensor
) -> Enclosure:
    """Put together what is carried, by element and by norm, and what is fresh."""
    return Enclosure(value, carried + fresh, norm + euclidean(fresh))


def add(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Sum: carried r + s and ν + ν′, fresh u(|x + y| ⊕ carried) + f."""
    value, carried = left.value + right.value, left.radius + right.radius
    fresh = arithmetic.u * (value.abs() + carried) + arithmetic.floor
    return enclose(value, carried, left.slack + right.slack, fresh)


def multiply(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Product by element: carried (|y| ⊕ s)r + |x|s, or max(|y| ⊕ s)ν + ‖|x|s‖; rounded once."""
    value, partial = left.value * right.value, left.value.abs() * right.radius
    carried = right.most * left.radius + partial
    norm = right.most.amax(-1, keepdim=True) * left.slack + euclidean(partial)
    fresh = arithmetic.u * (value.abs() + carried) + arithmetic.floor
    return enclose(value, carried, norm, fresh)


def matmul(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Matrix product LR of inner length n, with `spare` further roundings of each product.

    Carried by element: min(r|R|, ν‖column of R‖) + (|L| ⊕ r)s. Carried by norm:
    ν‖R‖₂ + ‖(|L| ⊕ r)s‖, and where R is exact its second term is nothing. Fresh:
    γ over n + spare times (|L| ⊕ r)(|R| ⊕ s), and as many underflows.
    """
    length = left.value.shape[-1]
    columns = torch.linalg.vector_norm(right.value, dim=-2, keepdim=True)
    from_right = left.most @ right.radius
    carried = torch.minimum(left.radius @ right.value.abs(), left.slack * columns) + from_right
    spectral = torch.linalg.matrix_norm(right.value, ord=2)[..., None, None] * (1 + 1e-9)
    norm = left.slack * spectral + euclidean(from_right)
    fresh = _sums(left, right, arithmetic, length + spare)
    return enclose(left.value @ right.value, carried, norm, fresh)


def inner(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Products LRᵀ of rows: carried min(r|R|ᵀ, ν‖R row‖) + min((|L| ⊕ r)sᵀ, ‖|L| ⊕ r‖ν′)."""
    turned = Enclosure(right.value.mT, right.radius.mT)
    lengths, slack = euclidean(right.value).mT, right.slack.mT
    carried = torch.minimum(left.radius @ turned.value.abs(), left.slack * lengths)
    carried = carried + torch.minimum(left.most @ turned.radius, euclidean(left.most) * slack)
    fresh = _sums(left, turned, arithmetic, left.value.shape[-1] + spare)
    return Enclosure(left.value @ turned.value, carried + fresh)


def mix(weights: Enclosure, rows: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Sums of rows PV, as `matmul`, by norm: r‖V row‖ + (|P| ⊕ r)ν′, sums over the rows."""
    carried = weights.radius @ rows.value.abs() + weights.most @ rows.radius
    norm = weights.radius @ euclidean(rows.value) + weights.most @ rows.slack
    fresh = _sums(weights, rows, arithmetic, weights.value.shape[-1] + spare)
    return enclose(weights.value @ rows.value, carried, norm, fresh)


def _sums(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, count: int) -> torch.Tensor:
    return arithmetic.gamma(count) * (left.most @ right.most) + count * arithmetic.floor


def total(given: Enclosure, arithmetic: Arithmetic, dim: int) -> Enclosure:
    """Sum over one axis of length n: carried Σr, fresh γₙ Σ(|x| ⊕ r)."""
    gamma = arithmetic.gamma(given.value.shape[dim])
    radius = given.radius.sum(dim) + gamma * given.most.sum(dim)
    return Enclosure(given.value.sum(dim), radius)


def merge_heads(given: Enclosure) -> Enclosure:
    """Lay heads side by side: (batch, heads, length, d) to (batch, length, heads·d)."""

    def move(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(-3, -2).flatten(-2)

    return Enclosure(move(given.value), move(given.radius), euclidean(move(given.slack)))


def concatenate(parts: list[Enclosure]) -> Enclosure:
    """Lay enclosures side by side along the last axis."""
    return Enclosure(
        torch.cat([each.value for each in parts], -1),
        torch.cat([each.radius for each in parts], -1),
        euclidean(torch.cat([each.slack for each in parts], -1)),
    )
