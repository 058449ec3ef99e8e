"""Enclosures of the functions of gate and up, and of their derivatives.

With f one activation function, every form is f(ḡ)·(ū + c): c = 1 and both clamped for GPT-OSS, and
else c = 0 and neither. Symbols are those of `models.bounds.enclosure`; σ is the logistic function.

Fresh errors in units of the working precision come from `Activation.error`; a storage type of
fewer bits adds those of a computation that stores every intermediate result, in units of its own
roundoff, as `eager` and `eager_slope` say. Fused computations err less.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.activation import ACTIVATIONS, Activation
from attnspec.conformance.models.bounds.enclosure import Enclosure, add, enclose, multiply
from attnspec.conformance.operators.precision import Precision
from attnspec.spec.gated_mlp import GateForm

_ALPHA, _LIMIT = 1.702, 7.0


def _sigmoid_slope(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _swish_slope(x: torch.Tensor) -> torch.Tensor:
    t = _ALPHA * x
    return torch.sigmoid(t) + t * _sigmoid_slope(t)


def _swish_error(x: torch.Tensor, c: float) -> torch.Tensor:
    """Return the error of xσ(t), t = αx: (c + 8) of its own, and |t|(1 − σ) of t, relatively."""
    t = _ALPHA * x
    return x.abs() * torch.sigmoid(t) * (c + 8 + t.abs() * torch.sigmoid(-t))


def _swish_slope_error(x: torch.Tensor, c: float) -> torch.Tensor:
    """Return the error of σ + tσ(1 − σ): its terms are rounded, and t moves both by |t|f″(t)."""
    t = _ALPHA * x
    moved = t.abs() * (2 + t.abs()) * _sigmoid_slope(t)
    return (c + 16) * (torch.sigmoid(t) + t.abs() * _sigmoid_slope(t)) + moved


SIGMOID = Activation(
    value=torch.sigmoid,
    slope=_sigmoid_slope,
    curvature=0.1,  # the largest |σ″| is 1/(6√3) = 0.0962
    error=lambda x, c: torch.sigmoid(x) * (c + 4),
    slope_error=lambda x, c: _sigmoid_slope(x) * (c + 8) + torch.sigmoid(x) ** 2 * (c + 8),
)
"""The logistic function. 1 − σ of a computed σ errs by that of σ, absolutely."""

SWISH = Activation(
    value=lambda x: x * torch.sigmoid(_ALPHA * x),
    slope=_swish_slope,
    curvature=0.5 * _ALPHA,
    error=_swish_error,
    slope_error=_swish_slope_error,
)
"""x times the logistic function of 1.702 x, which is silu(t)/1.702."""

Error = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The function of gate and up of one form.

    Attributes:
        activation: f.
        eager: error of f if every intermediate result is stored, in units of the storage roundoff.
        eager_slope: likewise of f′.
        is_clamped: gate and up are clamped, and 1 is added to up.
    """

    activation: Activation
    eager: Error
    eager_slope: Error
    is_clamped: bool = False


def _of(activation: Activation) -> Gate:
    """Return a gate whose stored intermediate results err like those of exact functions."""
    return Gate(
        activation=activation,
        eager=lambda x: activation.error(x, 1.0),
        eager_slope=lambda x: activation.slope_error(x, 1.0),
    )


_RELU = ACTIVATIONS["relu"]

GATES: dict[GateForm, Gate] = {
    GateForm.SWIGLU: Gate(
        activation=ACTIVATIONS["silu"],
        eager=lambda x: 3 * (x * torch.sigmoid(x)).abs(),
        eager_slope=lambda x: 6 * torch.sigmoid(x) * (1 + x.abs() * torch.sigmoid(-x)),
    ),
    GateForm.GEGLU_TANH: _of(ACTIVATIONS["gelu_new"]),
    GateForm.GEGLU_ERF: _of(ACTIVATIONS["gelu"]),
    GateForm.REGLU: _of(_RELU),
    GateForm.GLU: Gate(
        activation=SIGMOID,
        eager=lambda x: 2 * torch.sigmoid(x),
        eager_slope=lambda x: 6 * torch.sigmoid(x),
    ),
    GateForm.CLAMPED: Gate(
        activation=SWISH,
        eager=lambda x: _swish_error(x, 0.0),
        eager_slope=lambda x: _swish_slope_error(x, 0.0),
        is_clamped=True,
    ),
}


def clamp(x: Enclosure, low: float, high: float) -> Enclosure:
    """Enclose a clamped value: clamping moves no two numbers apart."""
    return Enclosure(x.value.clamp(low, high), x.radius)


def clamp_slope(x: Enclosure, low: float, high: float) -> Enclosure:
    """Enclose the derivative of a clamp: either 0 or 1 if the enclosure holds a limit."""
    inside = ((x.value >= low) & (x.value <= high)).double()
    near = ((x.value - low).abs() <= x.radius) | ((x.value - high).abs() <= x.radius)
    return Enclosure(inside, near.double())


def _activated(x: Enclosure, which: Gate, precision: Precision) -> Enclosure:
    """Enclose f: carried r(|f′(x)| + curvature·r + jump); fresh as `_fresh` says."""
    f = which.activation
    steepest = f.slope(x.value).abs() + f.jump + f.curvature * x.radius
    return enclose(
        f.value(x.value),
        steepest * x.radius,
        steepest.amax(-1, keepdim=True) * x.slack,
        _fresh(x, f.error, which.eager, precision),
    )


def _slope(x: Enclosure, which: Gate, precision: Precision) -> Enclosure:
    """Enclose f′: carried curvature·r, plus the jump if the enclosure holds zero; fresh alike."""
    f = which.activation
    carried = f.curvature * x.radius + torch.where(x.value.abs() <= x.radius, f.jump, 0.0)
    fresh = _fresh(x, f.slope_error, which.eager_slope, precision)
    return Enclosure(f.slope(x.value), carried + fresh)


def _fresh(
    x: Enclosure,
    error: Callable[[torch.Tensor, float], torch.Tensor],
    eager: Error,
    precision: Precision,
) -> torch.Tensor:
    """Return the largest evaluation error at x and at both ends of its enclosure."""
    arithmetic = precision.arithmetic
    points = (x.value, x.value - x.radius, x.value + x.radius)
    worst = torch.stack([error(point, arithmetic.elementary) for point in points]).amax(0)
    fresh = arithmetic.u * worst + 4 * arithmetic.floor
    if precision.storage:
        stored = torch.stack([eager(point) for point in points]).amax(0)
        fresh = fresh + precision.storage * stored + 4 * precision.floor
    return fresh


@dataclass(frozen=True, kw_only=True)
class Gated:
    """Gate and up after their parts of the function, as a reverse pass needs them.

    Attributes:
        activated: f(ḡ).
        factor: ū + c.
        hidden: their product.
        gate_slope: df(ḡ)/dg.
        up_slope: d(ū + c)/du; None if it is 1.
    """

    activated: Enclosure
    factor: Enclosure
    hidden: Enclosure
    gate_slope: Enclosure
    up_slope: Enclosure | None


def gated(gate: Enclosure, up: Enclosure, form: GateForm, precision: Precision) -> Gated:
    """Enclose the function of gate and up, and its derivatives."""
    arithmetic, which = precision.arithmetic, GATES[form]
    bounded, factor, up_slope = gate, up, None
    if which.is_clamped:
        bounded = clamp(gate, float("-inf"), _LIMIT)
        ones = Enclosure.exact(torch.ones_like(up.value))
        factor = precision.stored(add(clamp(up, -_LIMIT, _LIMIT), ones, arithmetic))
        up_slope = clamp_slope(up, -_LIMIT, _LIMIT)
    activated = _activated(bounded, which, precision)
    slope = _slope(bounded, which, precision)
    if which.is_clamped:
        slope = multiply(slope, clamp_slope(gate, float("-inf"), _LIMIT), arithmetic)
    hidden = precision.stored(multiply(activated, factor, arithmetic))
    return Gated(
        activated=activated, factor=factor, hidden=hidden, gate_slope=slope, up_slope=up_slope
    )
