r"""The error bound of GELU and of its gradient, element by element.

The evaluation error of :math:`f` and of :math:`f'` at an exact argument, for elementary functions
that err by *c* units, is that of `attnspec.conformance.models.bounds.activation`, in units of the
type that the function is computed in. If every step is stored, elementary functions of the storage
type err by one unit of it, and the same counts hold in its units. On top of these,

- a stored result has *u* of its own size, and a gradient two (its product may be stored before);
- float64 that is computed in float32 has a rounded argument, which moves :math:`f` by
  1.13 *u* :math:`|x|` (the largest slope) and :math:`f'` by 0.8 *u* :math:`|x|` (its curvature);
- a number that underflows has an absolute error, which is multiplied by :math:`1 + |x|` at most.

A gradient has no bound if the cube of its argument overflows on the way.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64

from attnspec.conformance.models.bounds.activation import ACTIVATIONS, Activation
from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.roundoff import Roundoff
from attnspec.spec.gelu import Approximate, GELUProfile
from attnspec.spec.operator import Working

FORMS: dict[Approximate, Activation] = {
    Approximate.NONE: ACTIVATIONS["gelu"],
    Approximate.TANH: ACTIVATIONS["gelu_new"],
}
"""The function of each form, with its derivative and the evaluation errors of both."""

STEEPEST = 1.13
"""The largest slope of either form."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of one call.

    Attributes:
        out: of each element of the output.
        input: of the gradient of the argument; None without a backward pass.
    """

    out: Float64[torch.Tensor, "*shape"]
    input: Float64[torch.Tensor, "*shape"] | None = None

    def plus(self, other: "Bounds") -> "Bounds":
        """Return the sums of these bounds and others; of gradients if both have them."""
        both = None if self.input is None or other.input is None else self.input + other.input
        return Bounds(out=self.out + other.out, input=both)


def bounds(
    x: Float[torch.Tensor, "*shape"],
    profile: GELUProfile,
    grad_out: Float[torch.Tensor, "*shape"] | None = None,
) -> Bounds:
    """Return the largest error of each element that a conforming GELU may have.

    Args:
        x: the arguments, in the storage type.
        profile: the form, and where results are rounded.
        grad_out: the incoming gradient, in the storage type.
    """
    computed = profile.float64_precision.computed_in(x.dtype)
    narrowing = Roundoff.of(computed).storage if computed is not x.dtype else 0.0
    unit = Roundoff.of(computed, stores_steps=profile.working is Working.STORAGE)
    at, form = x.detach().double(), FORMS[profile.approximate]
    c = Arithmetic.of(torch.float64 if computed == torch.float64 else torch.float32).elementary
    error, slope_error = unit.working * form.error(at, c), unit.working * form.slope_error(at, c)
    if profile.working is Working.STORAGE:
        error = error + unit.storage * form.error(at, 1.0)
        slope_error = slope_error + unit.storage * form.slope_error(at, 1.0)
    error = error + narrowing * STEEPEST * at.abs()
    slope_error = slope_error + narrowing * form.curvature * at.abs()
    value, slope = form.value(at), form.slope(at)
    rest = (1 + at.abs()) * (4 * unit.floor + unit.tiny)
    out = _defined(error + unit.storage * (value.abs() + error) + rest, at)
    if grad_out is None:
        return Bounds(out=out)
    grad = grad_out.detach().double().abs()
    size = slope.abs() + slope_error
    of_input = grad * (slope_error + (2 * unit.storage + unit.step + narrowing) * size)
    of_input = of_input + (1 + grad) * rest
    of_input = torch.where(3 * at.abs() ** 3 < unit.largest, of_input, torch.inf)
    return Bounds(out=out, input=_defined(of_input, at))


def _defined(bound: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return a bound, infinite at infinite arguments, and zero at a NaN, which stays one."""
    bound = torch.where(at.isinf(), torch.inf, bound)
    return torch.where(at.isnan(), 0.0, bound)
