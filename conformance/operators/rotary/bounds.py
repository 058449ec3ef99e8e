"""The worst error of rotated channels and of their gradients, element by element, from the data.

With the cosine c and the sine s of a pair, each of which errs by r, the result is

    y_a = a c - b s,    y_b = a s + b c.

- *carried*: (|a| + |b|) r. If cosine and sine are stored, each errs by u_s(|c| + r) more.
- *products and sum*: two roundings on the way of each product, γ₂(|a|(|c| + r) + |b|(|s| + r)), in
  the working precision, with or without fused multiply-add; if every step is stored, also in the
  storage type.
- *result*: otherwise one rounding to the storage type, u_s(|y| + error).

The gradient turns the incoming gradient back, by the same cosines and the negative sines: it has
the same bound, with the gradient in place of x, and products and sum are always stored: autograd
stores the gradient of each use of a channel before it adds them. Channels that are not turned are
exact.

If float64 is computed in float32, each channel is rounded on the way in, u|a| and u|b|, also those
that are not turned.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64

from attnspec.conformance.operators.precision import Precision
from attnspec.conformance.operators.rotary.angles import Turns
from attnspec.spec.operator import Working
from attnspec.spec.rotary import Pairing

ORACLE = 4 * 2.0**-53
"""Relative error of the oracle's own products and sum, in float64."""


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Exact results, and the largest distance of each.

    Attributes:
        value: in float64.
        bound: of each element.
    """

    value: Float64[torch.Tensor, "batch heads length d_head"]
    bound: Float64[torch.Tensor, "batch heads length d_head"]


def split(x: torch.Tensor, rotary_dim: int, pairing: Pairing) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first and the second channel of every pair."""
    if pairing is Pairing.HALF:
        return x[..., : rotary_dim // 2], x[..., rotary_dim // 2 : rotary_dim]
    return x[..., 0:rotary_dim:2], x[..., 1:rotary_dim:2]


def join(first: torch.Tensor, second: torch.Tensor, pairing: Pairing) -> torch.Tensor:
    """Return the channels of pairs: the inverse of `split`."""
    if pairing is Pairing.HALF:
        return torch.cat([first, second], -1)
    return torch.stack([first, second], -1).flatten(-2)


def turned(
    x: torch.Tensor,
    turns: Turns,
    pairing: Pairing,
    precision: Precision,
    working: Working,
    *,
    is_narrowed: bool = False,
    back: bool = False,
) -> Turned:
    """Turn the pairs of the first channels, and enclose the results of conforming computations.

    Args:
        x: (batch, heads, length, d_head), exact as stored.
        turns: cosines and sines of every token and pair.
        pairing: the channels of a pair.
        precision: of the type of x, or of the narrower one in which it is computed.
        working: the type in which the steps are rounded.
        is_narrowed: whether x is rounded to the type of `precision`, in which it is not stored.
        back: turn the other way, as the gradient does.
    """
    exact = x.detach().double()
    rotary_dim = 2 * turns.cosine.shape[-1]
    a, b = split(exact, rotary_dim, pairing)
    cosine, sine, error = (each[:, None] for each in (turns.cosine, turns.sine, turns.error))
    if back:
        sine = -sine
    value = join(a * cosine - b * sine, a * sine + b * cosine, pairing)
    stores_turns = working is Working.STORAGE and bool(precision.storage)
    stores_products = stores_turns or (back and bool(precision.storage))
    of_cosine = of_sine = error
    if stores_turns:
        of_cosine = error + precision.storage * (cosine.abs() + error) + precision.floor
        of_sine = error + precision.storage * (sine.abs() + error) + precision.floor
    large_cosine, large_sine = cosine.abs() + of_cosine, sine.abs() + of_sine
    size = join(
        a.abs() * large_cosine + b.abs() * large_sine,
        a.abs() * large_sine + b.abs() * large_cosine,
        pairing,
    )
    carried = join(
        a.abs() * of_cosine + b.abs() * of_sine, a.abs() * of_sine + b.abs() * of_cosine, pairing
    )
    arithmetic = precision.arithmetic
    operand = torch.finfo(torch.float32).eps / 2 if is_narrowed else 0.0
    carried = carried + operand * size
    bound = carried + (arithmetic.gamma(2) * (1 + operand) + ORACLE) * size + 3 * arithmetic.floor
    if stores_products:
        twice = 2 * precision.storage / (1 - 2 * precision.storage)
        bound = bound + twice * (size + bound) + 3 * precision.floor
    elif precision.storage:
        bound = bound + precision.storage * (value.abs() + bound) + precision.floor
    kept = exact[..., rotary_dim:]
    of_kept = operand * kept.abs() + (arithmetic.floor if is_narrowed else 0.0)
    return Turned(value=torch.cat([value, kept], -1), bound=torch.cat([bound, of_kept], -1))
