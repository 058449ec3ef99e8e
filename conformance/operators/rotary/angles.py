r"""Exact angles of rotary positions, and the worst error of computed ones.

The oracle computes frequencies and angles with 50 decimal digits and reduces an angle by whole
turns before its cosine and sine are taken in float64, so that the angle of a large position is as
accurate as that of a small one.

**Error of an angle** in a working precision of unit roundoff u. With c the error of a power, a
cosine or a sine in units of u, and e = 2i/d the exponent of pair i:

.. math::
    \rho_i = u\,(4\, e \ln b + c + 2)

is the relative error of a frequency b^(−e): the exponent and its product with ln b are rounded up
to four times, whether the power is taken directly or as an exponential; then follow the power and
a reciprocal. A position below 2²⁴ is exact, its product with the frequency rounds once:

.. math:: \lvert \Delta\phi \rvert \le \lvert \phi \rvert\, (\rho_i + u)

The error grows with the position. An angle of which nothing has to be rounded is exact: pair 0 has
frequency 1, and position 0 has angle 0. The bound uses the second only.

Scalings add to the relative error of a frequency:

- `linear`: one division, u.
- `dynamic`: r = sL/L₀ − (s − 1) errs by u(3sL/L₀ + s) absolutely, its power d/(d − 2) by that
  factor more and by u(4|ln r| d/(d − 2) + c), the product with b by u; the frequency takes the
  base to the power e.
- `yarn` and `llama3`: both mix θ and θ/s with γ, whose absolute error is ε. The mixture is at
  least θ/s, so that it errs by ρ + 4u + s ε relatively. For `yarn`, ε = 4u, given the ends of the
  ramp, which are computed in float64. For `llama3`, ε = (h(ρ + 4u) + 4u(h + l))/(h − l) with h and
  l the numbers of turns: γ is clamped outside, and moves by no more.

Cosine and sine err by \|Δφ\| + cu; with a magnitude m, by m times that and 6mu for m and for the
product. Every error is at most 2m, since cosine and sine are at most m in magnitude.
"""

import decimal
import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int

from attnspec.spec.rotary import AnglePrecision, RotaryProfile, RotaryScaling, ScalingKind

ELEMENTARY = 8.0
"""Error of a power, a cosine or a sine in units of the unit roundoff: four units in the last place,
chosen with room to spare."""

_CONTEXT = decimal.Context(prec=50)
_TURN = decimal.Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563")
"""2π."""


@dataclass(frozen=True, kw_only=True)
class Frequencies:
    """The frequencies of one configuration.

    Attributes:
        exact: by pair.
        magnitude: the factor of cosine and sine.
        error: relative error of each in units of the unit roundoff.
    """

    exact: tuple[decimal.Decimal, ...]
    magnitude: float
    error: tuple[float, ...]


@functools.lru_cache(maxsize=256)
def exact_frequencies(
    rotary_dim: int, base: float, scaling: RotaryScaling | None, length: int
) -> Frequencies:
    """Compute the frequencies of a configuration, and their errors.

    Args:
        rotary_dim: the channels that are turned.
        base: of the frequencies.
        scaling: the rule; None for none.
        length: one more than the largest position of the call; used by `dynamic` alone.
    """
    with decimal.localcontext(_CONTEXT):
        of_base = 0.0
        exact_base = decimal.Decimal(base)
        if scaling is not None and scaling.kind is ScalingKind.DYNAMIC:
            exact_base, of_base = _dynamic_base(rotary_dim, exact_base, scaling, length)
        pairs = range(rotary_dim // 2)
        exponents = [decimal.Decimal(2 * pair) / rotary_dim for pair in pairs]
        logarithm = exact_base.ln()
        theta = [(-each * logarithm).exp() for each in exponents]
        error = [
            float(each) * (4 * float(logarithm) + of_base) + ELEMENTARY + 2 for each in exponents
        ]
        if scaling is not None and scaling.kind is ScalingKind.LINEAR:
            theta = [each / decimal.Decimal(scaling.factor) for each in theta]
            error = [each + 1 for each in error]
        if scaling is not None and scaling.kind in (ScalingKind.YARN, ScalingKind.LLAMA3):
            theta, error = _mixed(rotary_dim, base, scaling, theta, error)
    magnitude = 1.0 if scaling is None else scaling.magnitude
    return Frequencies(exact=tuple(theta), magnitude=magnitude, error=tuple(error))


def _dynamic_base(
    rotary_dim: int, base: decimal.Decimal, scaling: RotaryScaling, length: int
) -> tuple[decimal.Decimal, float]:
    """Return the base of a length, and its relative error in units of the unit roundoff."""
    if length <= scaling.original_length:
        return base, 0.0
    factor = decimal.Decimal(scaling.factor)
    longer = factor * length / scaling.original_length
    ratio = longer - (factor - 1)
    power = decimal.Decimal(rotary_dim) / (rotary_dim - 2)
    of_ratio = float((3 * longer + factor) / ratio) + 4 * float(ratio.ln())
    return base * ratio**power, float(power) * of_ratio + ELEMENTARY + 1


def _mixed(
    rotary_dim: int,
    base: float,
    scaling: RotaryScaling,
    theta: list[decimal.Decimal],
    error: list[float],
) -> tuple[list[decimal.Decimal], list[float]]:
    """Return mixtures of each frequency and its quotient by the factor, and their errors."""
    factor = decimal.Decimal(scaling.factor)
    mixed, errors = [], []
    for pair, (each, units) in enumerate(zip(theta, error, strict=True)):
        if scaling.kind is ScalingKind.YARN:
            kept, of_kept = 1 - _yarn_ramp(rotary_dim, base, scaling, pair), 4.0
        else:
            low = decimal.Decimal(scaling.low_freq_factor)
            high = decimal.Decimal(scaling.high_freq_factor)
            turns = scaling.original_length * each / _TURN
            kept = min(max((turns - low) / (high - low), decimal.Decimal(0)), decimal.Decimal(1))
            of_kept = float((high * decimal.Decimal(units + 4) + 4 * (high + low)) / (high - low))
        mixed.append(each * kept + each / factor * (1 - kept))
        errors.append(units + 4 + scaling.factor * of_kept)
    return mixed, errors


def _yarn_ramp(rotary_dim: int, base: float, scaling: RotaryScaling, pair: int) -> decimal.Decimal:
    """Return the share of the divided frequency in the mixture of a pair."""
    ends = []
    for turns in (scaling.beta_fast, scaling.beta_slow):
        ratio = decimal.Decimal(scaling.original_length) / (_TURN * decimal.Decimal(turns))
        ends.append(rotary_dim * ratio.ln() / (2 * decimal.Decimal(base).ln()))
    if scaling.truncate:
        ends = [
            ends[0].to_integral_value(decimal.ROUND_FLOOR),
            ends[1].to_integral_value(decimal.ROUND_CEILING),
        ]
    first, last = max(ends[0], decimal.Decimal(0)), min(ends[1], decimal.Decimal(rotary_dim - 1))
    width = last - first if last != first else decimal.Decimal("0.001")
    return min(max((pair - first) / width, decimal.Decimal(0)), decimal.Decimal(1))


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Cosines and sines by batch, token and pair, with their errors.

    Attributes:
        cosine: times the magnitude.
        sine: times the magnitude.
        error: the largest error of each of the two.
        magnitude: the factor of both.
    """

    cosine: Float64[torch.Tensor, "batch length pairs"]
    sine: Float64[torch.Tensor, "batch length pairs"]
    error: Float64[torch.Tensor, "batch length pairs"]
    magnitude: float


def turns(
    positions: Int[torch.Tensor, "batch length"], frequencies: Frequencies, u: float
) -> Turns:
    """Compute the cosine and the sine of every angle, and the error of computed ones.

    Args:
        positions: of the tokens.
        frequencies: of the configuration.
        u: unit roundoff of the precision in which angles are computed.
    """
    distinct, places = positions.unique(return_inverse=True)
    reduced = [[_reduced(p, theta) for theta in frequencies.exact] for p in distinct.tolist()]
    shape = (len(reduced), len(frequencies.exact))
    angles = torch.tensor(reduced, dtype=torch.float64).reshape(shape)[places]
    theta = torch.tensor([float(each) for each in frequencies.exact], dtype=torch.float64)
    units = torch.tensor(frequencies.error, dtype=torch.float64)
    size = positions.double().abs()[..., None] * theta
    magnitude = frequencies.magnitude
    error = abs(magnitude) * (size * u * (units + 1) + ELEMENTARY * u)
    if magnitude != 1:
        error = error + 6 * abs(magnitude) * u
    own = abs(magnitude) * 4 * 2.0**-53  # a reduced angle is rounded to float64, and so are these
    return Turns(
        cosine=magnitude * angles.cos(),
        sine=magnitude * angles.sin(),
        error=(error + own).clamp(max=2 * abs(magnitude)),
        magnitude=magnitude,
    )


def _reduced(position: int, theta: decimal.Decimal) -> float:
    """Return an angle in radians, less its whole turns."""
    with decimal.localcontext(_CONTEXT):
        angle = position * theta
        return float(angle - (angle / _TURN).to_integral_value() * _TURN)


def roundoff_of_angles(dtype: torch.dtype, profile: RotaryProfile) -> float:
    """Return the unit roundoff of angles for operands of a storage type."""
    is_float32 = profile.angles is AnglePrecision.FLOAT32
    is_wide = profile.float64_precision.computed_in(dtype) == torch.float64 and not is_float32
    return math.ldexp(1.0, -53 if is_wide else -24)
