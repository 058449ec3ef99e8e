r"""Affine forms: errors of which a linear part is followed exactly, so that their signs cancel.

An enclosure of one step after another forgets that the errors of two summands have one cause: the
states that a branch reads are also those to which its result is added. Each block then multiplies
the radius by the norms of all its maps, about a hundred times in ten branches of the drawn cases,
or 10⁷ in all, where the error itself hardly grows.

A `Form` holds the error of a state as Σ εₛ cₛ + e with |εₛ| ≤ 1 and |e| ≤ rest: one symbol εₛ for
each rounding error of an earlier state. A linear map sends every cₛ to its image. A smooth step
sends it to its image under the derivative at the exact state, and what the derivative leaves out,
of second order in the whole radius, is added to the rest, as are the step's own roundings. Rests
become symbols of their own at the end of each branch.

Symbols as in `models.bounds.enclosure`; r is the whole radius Σ|cₛ| + rest.

Source:
    de Figueiredo and Stolfi 2004, Affine arithmetic: concepts and applications
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64

from attnspec.conformance.models.bounds.activation import ACTIVATIONS
from attnspec.conformance.models.bounds.enclosure import UNKNOWN, Arithmetic, Enclosure, euclidean

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Form:
    """An exact state, and its error as an affine form.

    Attributes:
        value: the exact state.
        parts: coefficients of the symbols, which are shared by all texts.
        rest: the largest error of each element beside them.
    """

    value: Float64[torch.Tensor, "..."]
    parts: Float64[torch.Tensor, "..."]
    rest: Float64[torch.Tensor, "..."]

    @property
    def radius(self) -> torch.Tensor:
        """The largest error of each element."""
        return (self.parts.abs().sum(0) + self.rest).nan_to_num(nan=UNKNOWN).clamp(max=UNKNOWN)

    @property
    def magnitude(self) -> torch.Tensor:
        """The largest magnitude inside: |x| ⊕ r."""
        return self.value.abs() + self.radius

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Form":
        """Return the form with its elements moved, by axes that count from the last."""
        return Form(move(self.value), move(self.parts), move(self.rest))

    def enclosure(self, coarse: Enclosure) -> Enclosure:
        """Return an enclosure with the smaller of two radii, that of another and its own."""
        radius = torch.minimum(coarse.radius, self.radius)
        return Enclosure(coarse.value, radius, coarse.slack)

    def settle(self) -> "Form":
        """Return the form with a symbol for the rest of each element of a text."""
        length, width = self.rest.shape[-2:]
        one_hot = torch.eye(length * width, dtype=torch.float64)
        fresh = one_hot.view(length * width, 1, length, width) * self.rest
        return Form(self.value, torch.cat([self.parts, fresh]), torch.zeros_like(self.rest))


def start(x: Enclosure, symbols: int = 0) -> Form:
    """Return the form of a first state, behind the symbols of other texts.

    Args:
        x: the state.
        symbols: the number of those that others have.
    """
    parts = torch.zeros(symbols, *x.value.shape, dtype=torch.float64)
    return Form(x.value, parts, x.radius).settle()


def _padded(x: Form, symbols: int) -> torch.Tensor:
    """Return the coefficients of at least so many symbols."""
    missing = max(0, symbols - len(x.parts))
    return torch.cat([x.parts, torch.zeros(missing, *x.value.shape, dtype=torch.float64)])


def add_forms(left: Form, right: Form, arithmetic: Arithmetic) -> Form:
    """Return a sum: rests add up, fresh u(|x + y| ⊕ r) + f."""
    symbols = max(len(left.parts), len(right.parts))
    value = left.value + right.value
    total = Form(value, _padded(left, symbols) + _padded(right, symbols), left.rest + right.rest)
    fresh = arithmetic.u * total.magnitude + arithmetic.floor
    return Form(value, total.parts, total.rest + fresh)


def map_form(x: Form, weight: torch.Tensor, bias: torch.Tensor, arithmetic: Arithmetic) -> Form:
    """Return xW + b: the rest by |W|, fresh γₙ₊₁((|x| ⊕ r)|W| + |b|) + (n + 1)f."""
    weight, bias = weight.double(), bias.double()
    count = weight.shape[-2] + 1
    fresh = arithmetic.gamma(count) * (x.magnitude @ weight.abs() + bias.abs())
    return Form(
        x.value @ weight + bias,
        x.parts @ weight,
        x.rest @ weight.abs() + fresh + count * arithmetic.floor,
    )


def normalize_form(
    x: Form, gain: torch.Tensor, bias: torch.Tensor, epsilon: float, arithmetic: Arithmetic
) -> Form:
    r"""Return a LayerNorm, of d = x − mean(x), s = √(mean(d²) + ε), y = d/s over n channels.

    If d moves by c, y moves by (c − y mean(yc))/s to first order. With m² = mean(c²), s moves by m
    at most, and stays above s − m. Since 1/s′ − 1/s + mean(yc)/s² is at most 3m²/(s² s′), with s′
    at least s − m, what is left out is (3|y|m² + |c|m)/(s(s − m)) at most.
    The roundings are those of `models.bounds.forward.layer_norm`: ρ moves d, and γₙ₊₈ is relative.
    """
    n = x.value.shape[-1]
    centred = x.value - _mean(x.value)
    deviation = (_mean(centred.square()) + epsilon).sqrt()
    unit = centred / deviation
    rho = arithmetic.gamma(n + 2) * euclidean(x.magnitude) / math.sqrt(n)
    rho = rho + arithmetic.gamma(4) * x.magnitude + arithmetic.floor
    moved = x.parts - _mean(x.parts)
    parts = (moved - unit * _mean(unit * moved)) / deviation
    left = x.rest + _mean(x.rest) + rho
    rest = (left + unit.abs() * _mean(unit.abs() * left)) / deviation
    most = moved.abs().sum(0) + left
    size = euclidean(most) / math.sqrt(n)
    lowest = deviation - size
    second = (3 * unit.abs() * size.square() + most * size) / (deviation * lowest)
    rest = torch.where(lowest > 0, rest + second, math.inf)
    rest = rest + arithmetic.gamma(n + 8) * (unit.abs() + parts.abs().sum(0) + rest)
    gain, bias = gain.double(), bias.double()
    largest = (unit.abs() + parts.abs().sum(0) + rest) * gain.abs() + bias.abs()
    return Form(
        unit * gain + bias,
        parts * gain,
        rest * gain.abs() + arithmetic.gamma(2) * largest + arithmetic.floor,
    )


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1, keepdim=True)


def activate_form(x: Form, name: str, arithmetic: Arithmetic) -> Form:
    """Return an activation: left out curvature·r²/2, and the jump of f′ times r if r holds zero."""
    f = ACTIVATIONS[name]
    slope, radius = f.slope(x.value), x.radius
    crosses = x.value.abs() <= radius
    second = 0.5 * f.curvature * radius.square() + torch.where(crosses, f.jump * radius, 0.0)
    points = (x.value, x.value - radius, x.value + radius)
    worst = torch.stack([f.error(point, arithmetic.elementary) for point in points]).amax(0)
    fresh = arithmetic.u * worst + 4 * arithmetic.floor
    return Form(f.value(x.value), slope * x.parts, slope.abs() * x.rest + second + fresh)


def attend_form(
    query: Form,
    key: Form,
    value: Form,
    visible: Bool[torch.Tensor, "batch 1 queries keys"],
    scale: float,
    arithmetic: Arithmetic,
) -> Form:
    r"""Return softmax(scale·QKᵀ)V over the keys that a query may read.

    A score moves by scale(dQ Kᵀ + Q dKᵀ), and by scale·dQ dKᵀ, which is of second order. Let δ
    bound the movement of a score, p be its weight, o the output. To first order o moves by
    Σ pδ(v − o) + Σ p dv. With η = δ + Σ pδ, ϱ = η² e^η/2 and R = Σ pϱ, a weight moves by
    p(ϱ + R(1 + η)) more at most; these sum to zero, so that only v − o counts. The weights and the
    values move together by Σ|dp||dv|.
    The roundings are those of `models.bounds.forward.attention`; the error c of exp, relative to a
    weight, is one of its score.
    """
    keys = key.value.shape[-2]
    hidden = ~visible
    symbols = max(len(query.parts), len(key.parts), len(value.parts))
    q, k, v = (_padded(each, symbols) for each in (query, key, value))
    scores = scale * query.value @ key.value.mT
    moved = scale * (q @ key.value.mT + query.value @ k.mT)
    left = query.rest @ key.value.abs().mT + query.value.abs() @ key.rest.mT
    left = left + query.radius @ key.radius.mT
    count = query.value.shape[-1] + 4
    left = left + arithmetic.gamma(count) * query.magnitude @ key.magnitude.mT
    left = abs(scale) * (left + count * arithmetic.floor)
    largest = (scores.abs() + moved.abs().sum(0) + left).masked_fill(hidden, 0.0)
    left = left + 4 * arithmetic.u * (largest + largest.amax(-1, keepdim=True))
    left = (left + arithmetic.elementary * arithmetic.u).masked_fill(hidden, 0.0)
    moved = moved.masked_fill(hidden, 0.0)
    readable = scores.masked_fill(hidden, -math.inf)
    p = readable.softmax(-1)
    delta = moved.abs().sum(0) + left
    eta = delta + (p * delta).sum(-1, keepdim=True)
    second = 0.5 * eta.square() * eta.clamp(max=700).exp()
    weighted = (p * second).sum(-1, keepdim=True)
    second = p * (second + weighted * (1 + eta))
    dp = (p * eta + second).clamp(max=1.0)
    out = p @ value.value
    far = (value.value[..., None, :, :] - out[..., :, None, :]).abs()
    tilted = p * moved
    parts = tilted @ value.value - tilted.sum(-1, keepdim=True) * out + p @ v
    rest = ((p * left + second)[..., None] * far).sum(-2) + dp @ value.radius + p @ value.rest
    total = Form(out, parts, rest)
    fresh = arithmetic.gamma(2 * keys + 16) * ((p + dp) @ value.magnitude)
    fresh = fresh + arithmetic.floor * (visible.double() @ value.magnitude)
    log_keys = math.log(keys + 1)
    lse = readable.logsumexp(-1, keepdim=True).abs() + delta.amax(-1, keepdim=True)
    roundings = 6 * (lse + log_keys) + 4 * log_keys + 2 * arithmetic.elementary
    is_merged = visible.sum(-1, keepdim=True) > 1
    merge = torch.where(is_merged, torch.expm1((arithmetic.u * roundings).clamp(max=700)), 0.0)
    fresh = fresh + merge * (total.magnitude + fresh)
    return Form(out, parts, rest + fresh)


def linear_form(x: Form, weights: Weights, name: str, arithmetic: Arithmetic) -> Form:
    """Return a linear map that is stored output-major."""
    matrix = weights[f"{name}.weight"].double().mT
    return map_form(x, matrix, weights[f"{name}.bias"], arithmetic)


def attention_form(
    maps: tuple[str, str, str, str],
    weights: Weights,
    rows: Form,
    memory: Form,
    heads: int,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
) -> Form:
    """Return the form of `branches.enclose_attention`, with its arguments."""

    def split(name: str, states: Form) -> Form:
        projected = linear_form(states, weights, name, arithmetic)
        return projected.map(lambda y: y.unflatten(-1, (heads, -1)).transpose(-3, -2))

    scale = (rows.value.shape[-1] // heads) ** -0.5
    every = visible.expand(-1, -1, rows.value.shape[-2], -1)
    operands = split(maps[0], rows), split(maps[1], memory), split(maps[2], memory)
    mixed = attend_form(*operands, every, scale, arithmetic)
    merged = mixed.map(lambda y: y.transpose(-3, -2).flatten(-2))
    return linear_form(merged, weights, maps[3], arithmetic)


def feed_forward_form(
    maps: tuple[str, str], weights: Weights, act: str, rows: Form, arithmetic: Arithmetic
) -> Form:
    """Return the form of `branches.enclose_feed_forward`, with its arguments."""
    inner = linear_form(rows, weights, maps[0], arithmetic)
    return linear_form(activate_form(inner, act, arithmetic), weights, maps[1], arithmetic)
