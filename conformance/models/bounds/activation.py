"""Enclosures of activation functions and of their derivatives."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, enclose


@dataclass(frozen=True, kw_only=True)
class Activation:
    """An activation function, its derivative, and a bound of its second derivative.

    Attributes:
        value: f.
        slope: f′ (at a jump, either side).
        curvature: the supremum of |f″|, so that |f(x + δ) − f(x)| ≤ |δ||f′(x)| + curvature·δ²/2 and
            |f′(x + δ) − f′(x)| ≤ curvature·|δ|.
        jump: the size of the jump of f′ at zero.
        error: error of a computed f at exact x, in units of u, for elementary functions of error c.
        slope_error: likewise of f′.
    """

    value: Callable[[torch.Tensor], torch.Tensor]
    slope: Callable[[torch.Tensor], torch.Tensor]
    curvature: float
    error: Callable[[torch.Tensor, float], torch.Tensor]
    slope_error: Callable[[torch.Tensor, float], torch.Tensor]
    jump: float = 0.0


_A, _B = math.sqrt(2 / math.pi), 0.044715


def _inner(x: torch.Tensor) -> torch.Tensor:
    return _A * (x + _B * x**3)


def _inner_slope(x: torch.Tensor) -> torch.Tensor:
    return _A * (1 + 3 * _B * x**2)


def _sech2(t: torch.Tensor) -> torch.Tensor:
    return 1 - torch.tanh(t).square()


def _phi(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _tanh_error(x: torch.Tensor, c: float) -> torch.Tensor:
    """Return the error of tanh(t): c|tanh| of its own, and 8|t| of t, whose terms share a sign."""
    t = _inner(x)
    return c * torch.tanh(t).abs() + 8 * t.abs() * _sech2(t)


def _gelu_new_slope(x: torch.Tensor) -> torch.Tensor:
    t = _inner(x)
    return 0.5 * (1 + torch.tanh(t)) + 0.5 * x * _sech2(t) * _inner_slope(x)


def _gelu_new_slope_error(x: torch.Tensor, c: float) -> torch.Tensor:
    """Return the error of f′, whose terms are rounded 16 times.

    ½(1 + tanh) errs as tanh does, and 1 − tanh² errs 2|tanh| times as much.
    """
    t, error = _inner(x), _tanh_error(x, c)
    wide = x.abs() * _inner_slope(x)
    return 0.5 * error + wide * (torch.tanh(t).abs() * error + 1) + 16 * (1 + wide * _sech2(t))


ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": Activation(
        value=lambda x: 0.5 * x * (1 + torch.tanh(_inner(x))),
        slope=_gelu_new_slope,
        curvature=0.8,
        error=lambda x, c: 0.5 * x.abs() * (_tanh_error(x, c) + 4 * (1 + torch.tanh(_inner(x)))),
        slope_error=_gelu_new_slope_error,
    ),
    "gelu": Activation(
        value=lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
        slope=lambda x: 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * _phi(x),
        curvature=0.8,
        error=lambda x, c: 0.5 * x.abs() * (c + 4 * x.abs() * _phi(x) + 8),
        slope_error=lambda x, c: c + 8 + x.abs() * _phi(x) * (2 * c + 4 * x * x + 16),
    ),
    "relu": Activation(
        value=lambda x: x.clamp(min=0),
        slope=lambda x: (x > 0).double(),
        curvature=0.0,
        jump=1.0,
        error=lambda x, c: torch.zeros_like(x),
        slope_error=lambda x, c: torch.zeros_like(x),
    ),
    "silu": Activation(
        value=lambda x: x * torch.sigmoid(x),
        slope=lambda x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
        curvature=0.5,
        error=lambda x, c: x.abs() * torch.sigmoid(x) * (c + 8),
        slope_error=lambda x, c: (c + 16) * (1 + x.abs()) * torch.sigmoid(x),
    ),
    "tanh": Activation(
        value=torch.tanh,
        slope=_sech2,
        curvature=0.8,
        error=lambda x, c: c * torch.tanh(x).abs() + 2,
        slope_error=lambda x, c: (2 * c + 8) * torch.ones_like(x),
    ),
}
"""The activation functions with a known bound, by their names in a configuration."""


def activation(x: Enclosure, name: str, arithmetic: Arithmetic) -> Enclosure:
    """Enclose an activation: carried r(|f′(x)| + curvature·r + jump), fresh by its evaluation.

    The fresh part is the largest of the evaluation errors at x and at the far end |x| ⊕ r of
    either sign.
    """
    f = ACTIVATIONS[name]
    steepest = f.slope(x.value).abs() + f.jump + f.curvature * x.radius
    fresh = arithmetic.u * _worst(f.error, x, arithmetic) + 4 * arithmetic.floor
    return enclose(
        f.value(x.value),
        steepest * x.radius,
        steepest.amax(-1, keepdim=True) * x.slack,
        fresh,
    )


def _worst(
    error: Callable[[torch.Tensor, float], torch.Tensor], x: Enclosure, arithmetic: Arithmetic
) -> torch.Tensor:
    """Return the worst evaluation error at x and at both ends of its enclosure."""
    points = (x.value, x.value - x.radius, x.value + x.radius)
    return torch.stack([error(point, arithmetic.elementary) for point in points]).amax(0)


def activation_slope(x: Enclosure, name: str, arithmetic: Arithmetic) -> Enclosure:
    """Enclose f′: carried curvature·r, plus a jump if the enclosure holds zero; fresh as above."""
    f = ACTIVATIONS[name]
    carried = f.curvature * x.radius + torch.where(x.value.abs() <= x.radius, f.jump, 0.0)
    fresh = arithmetic.u * _worst(f.slope_error, x, arithmetic) + 4 * arithmetic.floor
    return Enclosure(f.slope(x.value), carried + fresh)
