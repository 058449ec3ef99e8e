r"""The error bound of LayerNorm, forward and backward, element by element.

Let :math:`c = x - \mu` be a row of *n* channels about its mean, :math:`s = \sqrt{v + \varepsilon}`
with the biased variance :math:`v`, and :math:`y = c / s`. *w* is the unit roundoff of sums, *t*
that of a step (*t = w* unless every step is stored), *u* that of the storage type.

- The mean errs by :math:`\gamma_{n+2} \overline{|x|} + t |\mu|`, and the subtraction, before or
  after the division, by 4 *t* of its operands: together :math:`\rho`, which moves :math:`c`.
- :math:`s` is the length of :math:`(c / \sqrt n, \sqrt\varepsilon)`, so that it moves by
  :math:`\|\rho\| / \sqrt n` at most. A further relative :math:`\gamma_{n+2} + 12 t` covers squares,
  their sum, epsilon, a fast reciprocal root and the division. The variance may be computed by two
  passes or by Welford's recurrence, whose error :math:`n w\, \mathrm{rms}(x) / s` the norm of
  :math:`\rho` contains; not as the mean of squares less the square of the mean.
- So :math:`y` errs by :math:`r = (\rho + |y|\, ds) / (s - ds)` and that relative error. Gain and
  bias add 2 *t* of :math:`|g y| + |b|`; results in storage add *u* for each rounding.

Of the gradient :math:`(a - \overline{a} - y\,\overline{a y}) / s`, with :math:`a` the incoming
gradient times the gain, terms cancel. An error *r* of :math:`y` moves it by
:math:`r |\overline{a y}| + (|y| + r)\, \overline{|a| r}`. Automatic differentiation subtracts the
mean of the whole numerator, in which the mean of the computed :math:`y` is at most
:math:`\overline r`. A kernel may take :math:`\overline{a c}` for
:math:`\overline{a x} - \mu\,\overline a`, whose sums round relative to
:math:`\overline{|a| (|x| + |\mu|)}`. If mean and root are saved in the storage type, each has one
*u* more, and so has each addition of a sum over rows. Every other rounding is relative to
:math:`T = S + \overline S`, :math:`S = |a| + |y|\, \overline{|a y|}`.

Source:
    Chan and Lewis 1979, on Welford's recurrence; Higham 2002, Accuracy and Stability of Numerical
    Algorithms, chapters 2 to 4
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64

from attnspec.conformance.operators.roundoff import Roundoff
from attnspec.spec.layer_norm import LayerNormProfile, Saved
from attnspec.spec.operator import Working
from attnspec.spec.rms_norm import RoundingToStorage

RELATIVE = 12
"""Steps of squares, mean, epsilon, reciprocal root and division that are not sums."""

STEPS = 16
"""Roundings on the way of a gradient beside those of sums and of y, in any order of the steps."""

NARROWED = 4
"""Roundings of rows, gain, bias and epsilon on the way into a narrower type."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of one call.

    Attributes:
        out: of each element of the output.
        input: of the gradient of the rows; None without a backward pass.
        weight: of the gradient of the gain; None without a backward pass.
        bias: of the gradient of the bias; None without a backward pass.
    """

    out: Float64[torch.Tensor, "*rows channels"]
    input: Float64[torch.Tensor, "*rows channels"] | None = None
    weight: Float64[torch.Tensor, " channels"] | None = None
    bias: Float64[torch.Tensor, " channels"] | None = None

    def plus(self, other: "Bounds") -> "Bounds":
        """Return the sums of these bounds and others; of gradients if both have them."""

        def both(name: str) -> torch.Tensor | None:
            one, two = getattr(self, name), getattr(other, name)
            return None if one is None or two is None else one + two

        return Bounds(
            out=self.out + other.out,
            input=both("input"),
            weight=both("weight"),
            bias=both("bias"),
        )


@dataclass(frozen=True, kw_only=True)
class _Normalized:
    """Exact parts of normalized rows, and their errors.

    Attributes:
        y: the normalized rows.
        root: s.
        error: of y, in absolute terms; infinity where nothing is promised.
        share: the relative error of s.
    """

    y: torch.Tensor
    root: torch.Tensor
    error: torch.Tensor
    share: torch.Tensor


def bounds(
    x: Float[torch.Tensor, "*rows channels"],
    weight: Float[torch.Tensor, " channels"],
    bias: Float[torch.Tensor, " channels"],
    epsilon: float,
    profile: LayerNormProfile,
    grad_out: Float[torch.Tensor, "*rows channels"] | None = None,
) -> Bounds:
    """Return the largest error of each element that a conforming LayerNorm may have.

    Args:
        x: the rows, in the storage type.
        weight: the gains, in the storage type.
        bias: the shifts, in the storage type.
        epsilon: is added to the variance.
        profile: where results are rounded.
        grad_out: the incoming gradient, in the storage type.

    Returns:
        Infinity where a square leaves the range of the type that the steps have, and where the
        error of a deviation is half of it or more: of such rows nothing is promised.
    """
    is_narrowed = profile.float64_precision.computed_in(x.dtype) is not x.dtype
    unit = Roundoff.of(
        profile.float64_precision.computed_in(x.dtype),
        stores_steps=profile.working is Working.STORAGE,
    )
    rows, gain, shift = (each.detach().double() for each in (x, weight, bias))
    narrowing = NARROWED * unit.storage if is_narrowed else 0.0
    parts = _normalize(rows, epsilon, unit, narrowing)
    y, root, r = parts.y, parts.root, parts.error
    product = gain.abs() * (y.abs() + r)
    size = product + shift.abs()
    out = gain.abs() * r + (2 * unit.step + narrowing) * size
    if profile.rounding is RoundingToStorage.BEFORE_GAIN:
        out = out + 2 * unit.storage * product
    out = (1 + unit.storage) * out + unit.storage * (gain * y + shift).abs()
    out = out + (1 + gain.abs()) * unit.tiny + (1 + gain.abs()) * unit.floor
    if grad_out is None:
        return Bounds(out=_defined(out, rows))
    grad = grad_out.detach().double()
    stores = 3 if profile.rounding is RoundingToStorage.BEFORE_GAIN else 2
    own = stores * unit.storage + narrowing
    is_saved_short = profile.saved is Saved.STORAGE and x.dtype.itemsize == 2
    if is_saved_short:
        parts = _normalize(rows, epsilon, unit, narrowing, saved=unit.storage)
        r = parts.error
    a = grad.abs() * gain.abs()
    overlap = _mean(grad * gain * y).abs()
    largest = _mean(a * (y.abs() + r))
    sizes_of_rows = rows.abs() + _mean(rows).abs()
    moved = _mean(a * r) + unit.gamma(x.shape[-1] + 8) * _mean(a * sizes_of_rows) / root
    sizes = a + (y.abs() + r) * largest
    relative = torch.expm1(
        4 * torch.log1p(parts.share)
        + math.log1p(unit.gamma(3 * x.shape[-1] + 24))
        + STEPS * math.log1p(unit.step)
        + math.log1p(own)
    )
    carried = r * overlap + (y.abs() + r) * moved + _mean(r) * largest
    of_input = (carried * (1 + relative) + relative * (sizes + _mean(sizes))) / root
    # the reverse pass multiplies by the cube of 1 / s, and by a sum over the row
    farthest = (1 + largest * x.shape[-1]) * torch.maximum(root, 1 / root) ** 3
    of_input = torch.where(farthest < unit.largest, of_input, torch.inf)
    # numbers below the smallest normal one that are flushed on the way, and then multiplied
    flushed = (1 + 1 / root) ** 3 * (1 + gain.abs()) * (unit.tiny + unit.floor)
    of_input = of_input + flushed * (1 + rows.abs())
    count = rows[..., 0].numel()
    additions = (count + 2) * unit.storage
    short = additions / (1 - additions) if additions < 1 else math.inf
    sums = math.expm1(
        math.log1p(short if is_saved_short else unit.gamma(count + 2))
        + 4 * math.log1p(unit.step)
        + math.log1p(own)
    )
    products = grad.abs() * (y.abs() + r)
    of_weight = grad.abs() * r + products * sums + grad.abs() * unit.tiny
    rest = unit.tiny + count * (unit.tiny if is_saved_short else unit.floor)
    return Bounds(
        out=_defined(out, rows),
        input=_defined(of_input, rows),
        weight=_total(_defined(of_weight, rows)) + rest,
        bias=_total(_defined(grad.abs() * sums, rows)) + rest,
    )


def _normalize(
    rows: torch.Tensor, epsilon: float, unit: Roundoff, narrowing: float, saved: float = 0.0
) -> _Normalized:
    """Return the exact normalized rows with their errors.

    Args:
        rows: the rows.
        epsilon: is added to the variance.
        unit: the roundings.
        narrowing: the rounding of rows on the way into a narrower type.
        saved: the rounding of mean and root after both have been computed.
    """
    n = rows.shape[-1]
    mean = _mean(rows)
    centred = rows - mean
    variance = _mean(centred.square())
    root = (variance + epsilon).sqrt()
    y = centred / root
    of_mean = unit.gamma(n + 2) * _mean(rows.abs()) + unit.step * mean.abs() + unit.floor
    rho = of_mean + 4 * unit.step * (rows.abs() + mean.abs() + of_mean) + unit.floor
    rho = rho + narrowing * (rows.abs() + _mean(rows.abs()))
    moved = _mean(rho.square()).sqrt() + unit.floor / root
    relative = unit.gamma(n + 2) + RELATIVE * unit.step + narrowing + saved
    if saved:
        rho = rho + saved * (mean.abs() + of_mean) + unit.tiny
    error = (rho + y.abs() * moved) / (root - moved)
    error = error + relative * (y.abs() + error) + unit.floor
    largest = torch.maximum(rows.square().amax(-1, keepdim=True), variance)
    total = variance * n if unit.step == unit.working else variance
    is_promised = (2 * moved < root) & (largest < unit.largest) & (total < unit.largest)
    return _Normalized(
        y=y,
        root=root,
        error=torch.where(is_promised, error, torch.inf),
        share=torch.where(is_promised, moved / (root - moved) + relative, torch.inf),
    )


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1, keepdim=True)


def _total(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over all rows; of one row without further axes, the row."""
    return x.reshape(-1, x.shape[-1]).sum(0)


def _defined(bound: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return a bound, infinite where it is none, and zero for rows that are not finite.

    Of an exact result that is NaN or infinite, the comparison demands the same.
    """
    bound = torch.where(bound.isnan(), torch.inf, bound)
    return torch.where(rows.isfinite().all(-1, keepdim=True), bound, 0.0)
