"""Enclosures: exact values with their worst error, from which the bound of a model is built.

An `Enclosure` is an exact real result together with a radius: every conforming computation of it
lies within. Each function below takes enclosures and returns the enclosure of its result. The
radius holds for any order of summation, with or without fused multiply-add.

The radius of a result is the sum of two parts, written out in each docstring.

- *carried*: the change of the exact result if the operands change within their radii. Terms
  above the first order are included.
- *fresh*: the rounding of this step itself, computed at the far end of the operands' radii.

A radius by element grows with the absolute values of a matrix, which ignores that errors of both
signs cancel. So an enclosure also bounds the Euclidean norm of the error along the last axis,
which grows with the spectral norm only; each of the two bounds sharpens the other.

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
"""Absolute error of an underflow: results below the smallest normal number may be flushed to zero,
and exp may flush a bit earlier. In float64 it is far larger, so that its square does not vanish."""

UNKNOWN = 1e100
"""The radius of a result of which nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The roundings of a conforming model.

    Attributes:
        u: unit roundoff, rounding to nearest.
        floor: absolute error of a result that underflows.
        elementary: error of exp, tanh and erf in units of `u`, as in `attnspec.spec.Rounding`.
    """

    u: float
    floor: float
    elementary: float = 32.0

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Arithmetic":
        """Return the arithmetic of a dtype.

        Raises:
            ValueError: if the dtype is neither float32 nor float64.
        """
        if dtype not in _UNDERFLOW:
            raise ValueError(f"a model is judged in float32 or float64, got {dtype}")
        return cls(u=torch.finfo(dtype).eps / 2, floor=_UNDERFLOW[dtype])

    def gamma(self, count: int) -> float:
        """Return γ of `count` roundings: the largest relative error of their product."""
        total = count * self.u
        return total / (1 - total) if total < 1 else math.inf


@dataclass(frozen=True)
class Enclosure:
    """An exact result, and the largest error of a conforming computation.

    Attributes:
        value: the exact result (to float64 accuracy).
        radius: the largest error of each element.
        norm: the largest Euclidean norm of the errors along the last axis; by default the norm of
            the radii.
    """

    value: Float64[torch.Tensor, "..."]
    radius: Float64[torch.Tensor, "..."]
    norm: Float64[torch.Tensor, "..."] | None = None

    def __post_init__(self) -> None:
        radius = _finite(self.radius)
        longest = _finite(euclidean(radius))
        norm = longest if self.norm is None else torch.minimum(_finite(self.norm), longest)
        object.__setattr__(self, "norm", norm)
        object.__setattr__(self, "radius", torch.minimum(radius, norm))

    @classmethod
    def exact(cls, value: torch.Tensor) -> "Enclosure":
        """Return the enclosure of exact numbers."""
        value = value.detach().double()
        return cls(value, torch.zeros_like(value))

    @property
    def magnitude(self) -> torch.Tensor:
        """The largest magnitude inside: |x| ⊕ r."""
        return self.value.abs() + self.radius

    @property
    def slack(self) -> torch.Tensor:
        """The norm ν, of shape (..., 1)."""
        assert self.norm is not None
        return self.norm

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Enclosure":
        """Return the enclosure with its elements moved (reshape, index), not computed with."""
        return Enclosure(move(self.value), move(self.radius))


def _finite(radius: torch.Tensor) -> torch.Tensor:
    """Return a radius that covers the rounding of its own computation, and is finite.

    A row of which nothing is known gets a useless but finite radius: its product with zero is zero.
    """
    wider = radius * (1 + 2.0**-40)
    return wider.nan_to_num(nan=UNKNOWN, posinf=UNKNOWN).clamp(max=UNKNOWN)


def euclidean(x: torch.Tensor) -> torch.Tensor:
    """Return ‖x‖ along the last axis, which keeps length 1."""
    return x.square().sum(-1, keepdim=True).sqrt()


def enclose(
    value: torch.Tensor, carried: torch.Tensor, norm: torch.Tensor, fresh: torch.Tensor
) -> Enclosure:
    """Return the enclosure of a value with its carried errors, by element and by norm, and fresh.

    Args:
        value: the exact result.
        carried: the carried error of each element.
        norm: the norm of the carried errors along the last axis.
        fresh: the rounding error of each element.
    """
    return Enclosure(value, carried + fresh, norm + euclidean(fresh))


def add(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Enclose a sum: carried r + s and ν + ν′, fresh u(|x + y| ⊕ carried) + f."""
    value, carried = left.value + right.value, left.radius + right.radius
    fresh = arithmetic.u * (value.abs() + carried) + arithmetic.floor
    return enclose(value, carried, left.slack + right.slack, fresh)


def multiply(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Enclose a product by element, rounded once.

    Carried (|y| ⊕ s)r + |x|s, or by norm max(|y| ⊕ s)ν + ‖|x|s‖.
    """
    value, partial = left.value * right.value, left.value.abs() * right.radius
    carried = right.magnitude * left.radius + partial
    norm = right.magnitude.amax(-1, keepdim=True) * left.slack + euclidean(partial)
    fresh = arithmetic.u * (value.abs() + carried) + arithmetic.floor
    return enclose(value, carried, norm, fresh)


def matmul(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Enclose a matrix product LR of inner length n, with `spare` more roundings of each product.

    Carried by element: min(r|R|, ν‖column of R‖) + (|L| ⊕ r)s. Carried by norm:
    ν‖R‖₂ + ‖(|L| ⊕ r)s‖, whose second term is zero if R is exact. Fresh:
    γ over n + spare times (|L| ⊕ r)(|R| ⊕ s), and n + spare underflows.
    """
    length = left.value.shape[-1]
    columns = torch.linalg.vector_norm(right.value, dim=-2, keepdim=True)
    from_right = left.magnitude @ right.radius
    carried = torch.minimum(left.radius @ right.value.abs(), left.slack * columns) + from_right
    spectral = spectral_norm(right.value) * (1 + 1e-9)
    norm = left.slack * spectral + euclidean(from_right)
    fresh = _sums(left, right, arithmetic, length + spare)
    return enclose(left.value @ right.value, carried, norm, fresh)


WIDE = 512
"""Rows and columns above which singular values take seconds."""


def spectral_norm(matrix: torch.Tensor) -> torch.Tensor:
    """Return the largest singular value of each matrix, up to 1e-9 of it.

    A wide matrix has the root of the largest eigenvalue of its Gram matrix. Rounding moves this
    eigenvalue by little: its error is relative to itself.
    """
    if min(matrix.shape[-2:]) <= WIDE:
        largest: torch.Tensor = torch.linalg.matrix_norm(matrix, ord=2)
        return largest[..., None, None]
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    gram = matrix.mT @ matrix if is_tall else matrix @ matrix.mT
    squares: torch.Tensor = torch.linalg.eigvalsh(gram)
    return squares[..., -1:, None].sqrt()


def inner(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Enclose products LRᵀ of rows.

    Carried min(r|R|ᵀ, ν‖R row‖) + min((|L| ⊕ r)sᵀ, ‖|L| ⊕ r‖ν′).
    """
    transposed = Enclosure(right.value.mT, right.radius.mT)
    lengths, slack = euclidean(right.value).mT, right.slack.mT
    carried = torch.minimum(left.radius @ transposed.value.abs(), left.slack * lengths)
    carried = carried + torch.minimum(
        left.magnitude @ transposed.radius, euclidean(left.magnitude) * slack
    )
    fresh = _sums(left, transposed, arithmetic, left.value.shape[-1] + spare)
    return Enclosure(left.value @ transposed.value, carried + fresh)


def mix(weights: Enclosure, rows: Enclosure, arithmetic: Arithmetic, spare: int = 0) -> Enclosure:
    """Enclose sums of rows PV like `matmul`, but by norm: r‖V row‖ + (|P| ⊕ r)ν′ over the rows."""
    carried = weights.radius @ rows.value.abs() + weights.magnitude @ rows.radius
    norm = weights.radius @ euclidean(rows.value) + weights.magnitude @ rows.slack
    fresh = _sums(weights, rows, arithmetic, weights.value.shape[-1] + spare)
    return enclose(weights.value @ rows.value, carried, norm, fresh)


def _sums(left: Enclosure, right: Enclosure, arithmetic: Arithmetic, count: int) -> torch.Tensor:
    return arithmetic.gamma(count) * (left.magnitude @ right.magnitude) + count * arithmetic.floor


def total(x: Enclosure, arithmetic: Arithmetic, dim: int) -> Enclosure:
    """Enclose a sum over one axis of length n: carried Σr, fresh γₙ Σ(|x| ⊕ r)."""
    gamma = arithmetic.gamma(x.value.shape[dim])
    radius = x.radius.sum(dim) + gamma * x.magnitude.sum(dim)
    return Enclosure(x.value.sum(dim), radius)


def merge_heads(x: Enclosure) -> Enclosure:
    """Concatenate heads: (batch, heads, length, d) to (batch, length, heads·d)."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(-3, -2).flatten(-2)

    return Enclosure(move(x.value), move(x.radius), euclidean(move(x.slack)))


def concatenate(parts: list[Enclosure]) -> Enclosure:
    """Concatenate enclosures along the last axis."""
    return Enclosure(
        torch.cat([part.value for part in parts], -1),
        torch.cat([part.radius for part in parts], -1),
        euclidean(torch.cat([part.slack for part in parts], -1)),
    )
