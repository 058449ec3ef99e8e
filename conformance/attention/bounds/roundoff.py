"""Roundoff: the numbers of a declared rounding profile, from which the error bound is computed.

Symbols, the same here, in the bounds and in the chapter on numerics (eq-num-units, NUM-2):

- *u* the unit roundoff of the accumulator: sums, scores, exponentials, log-sum-exp; *u_o* of the
  storage type of inputs and outputs; *u_p* of the type in which weights are multiplied by the
  values; *u_q*, *u_s*, *u_l* of the extra roundings that a level permits, zero if it permits none;
- *u_in* of the operands, if they are rounded before anything is computed: float64 computed in
  float32. All other numbers are then those of float32;
- γₙ = nu/(1 − nu): the relative error of n roundings, and of a sum of n terms in any order;
- θₙ(v) = (1 + v)ⁿ − 1: the same for a fixed small n;
- *f* the absolute error of a result that underflows: flushed to zero below the smallest normal
  number, with room for an exp that flushes a little earlier; float16 must underflow gradually, so
  half its smallest subnormal number is enough.

Source:
    Higham 2002, Accuracy and Stability of Numerical Algorithms, lemma 3.1
"""

import math
from dataclasses import dataclass

import torch

from attnspec.spec import Profile, RoundingLevel

UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
"""Unit roundoff of each storage type, rounding to nearest."""

FLOOR = {
    torch.float64: 2.0**-1018,
    torch.float32: 2.0**-122,
    torch.bfloat16: 2.0**-122,
    torch.float16: 2.0**-25,
}
"""Absolute error of a result that underflows."""

LOG_ERROR = 4.0
"""Relative error of a logarithm, in units of *u*."""

TILE = 16
"""The least number of keys between two rescalings of an online softmax by an inexact factor."""

SPARE = 16
"""Roundings of a sum over keys that γ counts besides one addition and one rescaling for each key.

They are the product, the quotient, a change of base and the merges of splits; no known kernel
needs so many. The number is chosen with room to spare, and not fitted.
"""

USELESS = 1e30
"""A relative error that promises nothing but is finite: its product with zero is zero."""


@dataclass(frozen=True, kw_only=True)
class Roundoff:
    """Unit roundoffs, error counts, floors and ranges of one declared rounding in one dtype.

    Attributes:
        u: accumulator.
        u_o: storage type.
        u_p: weights, and the gradients of scores, before their second product.
        u_q: scaled queries or keys (levels prescaled and eager).
        u_s: every other intermediate result (level eager).
        u_l: the sum of a row (levels rowsum and eager).
        u_in: every operand, before the first operation; zero if it is computed with as stored.
        exp: relative error of an exponential in units of `u`.
        exp_w: likewise of the exponential that becomes a weight.
        tanh: relative error of a hyperbolic tangent in units of `u`.
        f: floor of the storage type.
        f_u: floor of the accumulator.
        f_q: floor of scaled queries.
        largest: the largest finite number of the accumulator.
        largest_stored: the largest score of the storage type at level eager, else infinity.
    """

    u: float
    u_o: float
    u_p: float
    u_q: float
    u_s: float
    u_l: float
    u_in: float
    exp: float
    exp_w: float
    tanh: float
    f: float
    f_u: float
    f_q: float
    largest: float
    largest_stored: float

    @classmethod
    def of(cls, dtype: torch.dtype, profile: Profile) -> "Roundoff":
        """Return the numbers of a profile in a storage type.

        Raises:
            ValueError: if the dtype has no bound.
        """
        if dtype not in UNIT:
            known = ", ".join(str(other).removeprefix("torch.") for other in UNIT)
            raise ValueError(f"the error bound is known for {known}, got {dtype}")
        rounding, stored_in, dtype = profile.rounding, dtype, working_dtype(dtype, profile)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        level, stored = rounding.level, UNIT[dtype]
        is_eager = level == RoundingLevel.EAGER
        # an adder that is coarser than float32 by some factor is coarser than float64 by the same
        per_float32 = UNIT[wide] / UNIT[torch.float32]
        prescales = is_eager or level == RoundingLevel.PRESCALED
        return cls(
            u=UNIT[wide] if rounding.accumulator is None else rounding.accumulator * per_float32,
            u_o=stored,
            u_p=stored,
            u_q=stored if prescales else 0.0,
            u_s=stored if is_eager else 0.0,
            u_l=stored if is_eager or level == RoundingLevel.ROWSUM else 0.0,
            u_in=stored if dtype != stored_in else 0.0,
            exp=rounding.exp_error,
            exp_w=rounding.exp_error
            if rounding.weight_exp_error is None or wide == dtype
            else rounding.weight_exp_error,
            tanh=rounding.tanh_error,
            f=FLOOR[dtype],
            f_u=FLOOR[wide],
            f_q=FLOOR[dtype] if prescales else FLOOR[wide],
            largest=torch.finfo(wide).max,
            largest_stored=torch.finfo(dtype).max if is_eager else math.inf,
        )

    @property
    def stores_scores(self) -> bool:
        """Return whether the level rounds scores to the storage type, as `eager` does."""
        return self.u_s > 0

    def gamma(self, count: int) -> float:
        """Return γ of `count` roundings, or `USELESS` if they may add up to the result itself."""
        return inverse(count * self.u)


def working_dtype(dtype: torch.dtype, profile: Profile) -> torch.dtype:
    """Return the type to which operands of a storage type are rounded before the first operation.

    It is the storage type itself, unless the profile says that float64 is computed in float32.
    """
    return profile.float64_precision.computed_in(dtype)


def inverse(error: float) -> float:
    """Return x/(1 - x), the relative error of 1/y if y has x; `USELESS` if x ≥ 1."""
    return min(error / (1 - error), USELESS) if error < 1 else USELESS


def theta(count: float, unit: float) -> float:
    """Return θ, the relative error of a few roundings in a row."""
    return math.expm1(count * math.log1p(unit))


def compound(*errors: float) -> float:
    """Return (1 + a)(1 + b)… - 1, also if 1 + a rounds to 1 in float64."""
    return math.expm1(sum(map(math.log1p, errors)))
