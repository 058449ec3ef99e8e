r"""The error bound of RMSNorm, forward and backward, element by element.

With :math:`m` the mean square of a row, :math:`s = \sqrt{m + \varepsilon}` and :math:`y = x / s`,
every step has a relative error, since nothing cancels:

- the mean square has one rounding for each square, γ of *d* + 2 for sum and mean, and one for its
  result; squares that underflow add an absolute error. The sum with ε has two more (ε is rounded
  too). Let α be the relative error of :math:`m + \varepsilon`.
- the root turns α into :math:`(1 - \alpha)^{-1/2} - 1`, and has four units of its own (a fast
  reciprocal root has two); its product with the row has one. Let ρ be the error of :math:`y`.
- the gain has one rounding, 1 + g one more; stored results have one *u* for each time that they are
  rounded to the storage type: see `RoundingToStorage`.

Of the gradient :math:`(a - y\,\overline{a y}) / s` with :math:`a` the incoming gradient times the
gain, the two terms cancel, so that its bound is relative to the sum of their absolute values,
:math:`(|a| + |y|\,\overline{|a y|}) / s`.

Source:
    Higham 2002, Accuracy and Stability of Numerical Algorithms, chapters 2 to 4
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64

from attnspec.conformance.operators.roundoff import Roundoff
from attnspec.spec.operator import Working
from attnspec.spec.rms_norm import Gain, RMSNormProfile, RoundingToStorage

ROOT = 4
"""Units of rounding of a reciprocal root: twice those of the fast ones of GPUs."""

STEPS = 16
"""Roundings on the way of a gradient beside those of sums and of y, in any order of the steps."""

NARROWED = 4
"""Roundings of rows, squares, epsilon and gain on the way into a narrower type."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of one call.

    Attributes:
        out: of each element of the output.
        input: of the gradient of the rows; None without a backward pass.
        weight: of the gradient of the gain; None without a backward pass.
    """

    out: Float64[torch.Tensor, "*rows channels"]
    input: Float64[torch.Tensor, "*rows channels"] | None = None
    weight: Float64[torch.Tensor, " channels"] | None = None

    def plus(self, other: "Bounds") -> "Bounds":
        """Return the sums of these bounds and others; of gradients if both have them."""
        pairs = ((self.input, other.input), (self.weight, other.weight))
        of_input, of_weight = (
            None if one is None or two is None else one + two for one, two in pairs
        )
        return Bounds(out=self.out + other.out, input=of_input, weight=of_weight)


def bounds(
    x: Float[torch.Tensor, "*rows channels"],
    weight: Float[torch.Tensor, " channels"],
    epsilon: float,
    profile: RMSNormProfile,
    grad_out: Float[torch.Tensor, "*rows channels"] | None = None,
    *,
    unit: Roundoff | None = None,
) -> Bounds:
    """Return the largest error of each element that a conforming RMSNorm may have.

    Args:
        x: the rows, in the storage type.
        weight: the learned numbers, in the storage type.
        epsilon: is added to the mean square.
        profile: where results are rounded.
        grad_out: the incoming gradient, in the storage type.
        unit: the roundings, if they are not those of the storage type of the rows.

    Returns:
        Infinity where a square leaves the range of the type that the steps have: of such rows
        nothing is promised.
    """
    is_narrowed = profile.float64_precision.computed_in(x.dtype) is not x.dtype
    if unit is None:
        unit = roundoff_of(x.dtype, profile)
    rows, gain = x.detach().double(), weight.detach().double()
    gain = 1 + gain if profile.gain is Gain.ONE_PLUS else gain
    square = rows.square().mean(-1, keepdim=True)
    root = (square + epsilon).sqrt()
    y, rho = rows / root, _error_of_row(rows, square, epsilon, unit)
    step, store = math.log1p(unit.step), math.log1p(unit.storage)
    if is_narrowed:
        rho = rho + NARROWED * store
    stores = 1 if profile.rounding is RoundingToStorage.AFTER_GAIN else 2
    stores += profile.gain is Gain.ONE_PLUS and stores == 2  # 1 + g is stored as well
    relative = torch.expm1(rho + 2 * step + stores * store)
    # what underflows once more behind the gain, and before it
    least = (1 + gain.abs()) * unit.tiny + (1 + 1 / root) * gain.abs() * unit.floor
    out = _defined((gain * y).abs() * relative + least, rho, rows)
    if grad_out is None:
        return Bounds(out=out)
    grad = grad_out.detach().double()
    a = (grad * gain).abs()
    overlap = (a * y.abs()).mean(-1, keepdim=True)
    terms = (a + y.abs() * overlap) / root
    sums = math.log1p(unit.gamma(x.shape[-1] + STEPS))
    of_input = terms * torch.expm1(4 * rho + sums + STEPS * step + (stores + 1) * store)
    # the reverse pass multiplies by the cube of 1 / s, and by a sum over the row
    farthest = (1 + overlap * x.shape[-1]) * torch.maximum(root, 1 / root) ** 3
    of_input = torch.where(farthest < unit.largest, of_input, torch.inf)
    # numbers below the smallest normal one that are flushed on the way, and then multiplied
    flushed = (1 + 1 / root) ** 3 * (1 + gain.abs()) * (unit.tiny + unit.floor)
    products = (grad * y).abs()
    count = rows[..., 0].numel()
    sums = math.log1p(unit.gamma(count + 2))
    of_weight = products * torch.expm1(rho + sums + 2 * step + (stores + 1) * store)
    dims = tuple(range(rows.dim() - 1))
    return Bounds(
        out=out,
        input=_defined(of_input + flushed * (1 + rows.abs()), rho, rows),
        weight=_defined(of_weight + grad.abs() * unit.tiny, rho, rows).sum(dims)
        + unit.tiny
        + count * unit.floor,
    )


def roundoff_of(dtype: torch.dtype, profile: RMSNormProfile) -> Roundoff:
    """Return the roundings of a storage type under a profile."""
    computed = profile.float64_precision.computed_in(dtype)
    return Roundoff.of(computed, stores_steps=profile.working is Working.STORAGE)


def _error_of_row(
    rows: torch.Tensor, square: torch.Tensor, epsilon: float, unit: Roundoff
) -> torch.Tensor:
    """Return log(1 + ρ) of a normalized row; infinity where squares overflow.

    Errors of float64 vanish beside one, so their logarithms are added.
    """
    d, step = rows.shape[-1], math.log1p(unit.step)
    of_square = math.expm1(2 * step + math.log1p(unit.gamma(d + 2)))
    alpha = (square * of_square + unit.floor) / (square + epsilon)
    alpha = torch.expm1(torch.log1p(alpha) + 2 * step)
    # a larger error promises nothing, see below
    rho = -torch.log1p(-alpha.clamp(max=0.5)) / 2 + (ROOT + 1) * step
    largest = torch.maximum(rows.square().amax(-1, keepdim=True), square)
    total = square * d if unit.step == unit.working else square
    is_promised = (alpha <= 0.5) & (largest < unit.largest) & (total < unit.largest)
    return torch.where(is_promised, rho, torch.inf)


def _defined(bound: torch.Tensor, rho: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return a bound, infinite for elements whose ρ is, and zero for rows that are not finite.

    Of an exact result that is NaN or infinite, the comparison demands the same.
    """
    bound = torch.where(rho.isinf(), torch.inf, bound)
    return torch.where(rows.isfinite().all(-1, keepdim=True), bound, 0.0)
