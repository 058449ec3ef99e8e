"""Activations: the nonlinear functions inside the MLP."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float


def gelu_tanh(x: Float[torch.Tensor, "*batch"]) -> Float[torch.Tensor, "*batch"]:
    r"""Apply the Gaussian error linear unit to each element, in GPT-2's approximation.

    .. math:: \frac{x}{2} \left(1 + \tanh\left(\sqrt{2 / \pi}\, (x + 0.044715\, x^3)\right)\right)

    Args:
        x: dimensionless, finite.

    Returns:
        Close to 0 far below zero, close to `x` far above it; never below -0.171.

    Clauses:
        ACT-1, ACT-2, ACT-3

    Source:
        Hendrycks and Gimpel 2016, section 2; Radford et al. 2019, released code
    """
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: Float[torch.Tensor, "*batch"]) -> Float[torch.Tensor, "*batch"]:
    r"""Apply the exact Gaussian error linear unit to each element, which is not GPT-2's.

    .. math:: x\, \Phi(x) = \frac{x}{2} \left(1 + \mathrm{erf}\frac{x}{\sqrt 2}\right)

    Args:
        x: dimensionless, finite.

    Returns:
        Within 5e-4 of `gelu_tanh`.

    Clauses:
        ACT-4

    Source:
        Hendrycks and Gimpel 2016, equation 1
    """
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def silu(x: Float[torch.Tensor, "*batch"]) -> Float[torch.Tensor, "*batch"]:
    r"""Multiply each element by its own logistic function: x / (1 + exp(-x)).

    Args:
        x: dimensionless, finite.

    Returns:
        Close to 0 far below zero, close to `x` far above it.

    Source:
        Hendrycks and Gimpel 2016, section 3
    """
    return x * _logistic(x)


def _logistic(x: torch.Tensor) -> torch.Tensor:
    """Compute 1 / (1 + exp(-x)) without overflow: the same number as (1 + tanh(x / 2)) / 2."""
    decay = torch.exp(-x.abs())
    return torch.where(x < 0, decay, 1.0) / (1.0 + decay)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    """Compute log(1 + exp(x)) without overflow."""
    return torch.where(x > 0, x, 0.0) + torch.log1p(torch.exp(-x.abs()))


def _gelu_fast(x: torch.Tensor) -> torch.Tensor:
    """Compute `gelu_tanh` with the root of 2/pi cut off after ten digits."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "gelu_new": gelu_tanh,
        "gelu_pytorch_tanh": gelu_tanh,
        "gelu_python_tanh": gelu_tanh,
        "gelu_accurate": gelu_tanh,
        "gelu_fast": _gelu_fast,
        "gelu": gelu_erf,
        "gelu_python": gelu_erf,
        "gelu_10": lambda x: gelu_erf(x).clamp(-10.0, 10.0),
        "quick_gelu": lambda x: x * _logistic(1.702 * x),
        "relu": lambda x: torch.where(x < 0, 0.0, x),
        "relu2": lambda x: torch.where(x < 0, 0.0, x) ** 2,
        "relu6": lambda x: x.clamp(0.0, 6.0),
        "leaky_relu": lambda x: torch.where(x < 0, 0.01 * x, x),
        "hardswish": lambda x: x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        "silu": silu,
        "swish": silu,
        "mish": lambda x: x * torch.tanh(_softplus(x)),
        "sigmoid": _logistic,
        "tanh": torch.tanh,
        "linear": lambda x: x,
    }
)
"""Every activation with a fixed formula that a checkpoint may name, by Hugging Face's names."""
