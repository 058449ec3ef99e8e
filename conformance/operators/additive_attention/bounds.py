r"""The worst error of additive attention and of its gradients, element by element, from the data.

Forward: a = W q, b = U k + β, z = a + b, t = tanh z, x = t·v, p = softmax(x) over real states,
o = p V. Products, sums and tanh are enclosed by `models.bounds`; every result may be stored. tanh
has no slope above one, and less where it is saturated: an error of z counts with 1 − t² there.

The softmax: with the radius r of the scores, and R the largest one of a row, an exact weight moves
by at most :math:`e^{r + R} - 1` relatively. Computed, the difference from the largest score rounds
by u of it, both exponentials by c units, their sum over n keys by :math:`\gamma_n`, and the
quotient once: the logarithm of the relative error of a weight is at most
:math:`r + R + u (g + G) + (2 c + n + 4) u`, where g is the distance of the score from the largest
and G the mean of these distances; weights that underflow err by the smallest number.

Backward, with the cotangent g of o: dV = pᵀg, dp = g Vᵀ, dx = p (dp − Σ p dp), dv = Σ dx t,
dz = dx v (1 − t²), da = Σ_j dz, db = Σ_i dz, dq = da W, dW = daᵀq, dk = db U, dU = dbᵀk and
dβ = Σ db. The sum over keys in dx may be g·o as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.activation import activation, activation_slope
from attnspec.conformance.models.bounds.enclosure import (
    Enclosure,
    add,
    inner,
    matmul,
    mix,
    multiply,
    total,
)
from attnspec.conformance.operators.precision import Precision
from attnspec.spec.additive_attention import AdditiveAttentionProfile

Tensors = Mapping[str, torch.Tensor]
"""The operands by the names of their parameters; `bias` and `mask` if there are any."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The enclosures of one call.

    Attributes:
        operands: every operand but the mask.
        before_tanh: z, (batch, queries, keys, d_inner).
        hidden: tanh z.
        weights: p.
        out: the result.
    """

    operands: dict[str, Enclosure]
    before_tanh: Enclosure
    hidden: Enclosure
    weights: Enclosure
    out: Enclosure


def forward(tensors: Tensors, profile: AdditiveAttentionProfile, dtype: torch.dtype) -> Forward:
    """Enclose a call that is computed in a storage type.

    Args:
        tensors: the operands, exact as stored.
        profile: the declared answers.
        dtype: the storage type.
    """
    computed = profile.float64_precision.computed_in(dtype)
    precision = Precision.of(computed)
    arithmetic = precision.arithmetic
    narrowed = arithmetic.u if computed is not dtype else 0.0
    operands = {
        name: Enclosure(each.detach().double(), narrowed * each.detach().double().abs())
        for name, each in tensors.items()
        if name != "mask"
    }
    from_query = _linear(operands["query"], operands["w_query"], precision)
    from_key = _linear(operands["key"], operands["w_key"], precision)
    if "bias" in operands:
        # to either of the two, or to their sum: one more rounding of a number of its size
        bias = operands["bias"]
        from_key = precision.stored(add(from_key, bias, arithmetic))
        extra = (arithmetic.u + precision.storage) * from_query.magnitude
        from_query = Enclosure(from_query.value, from_query.radius + extra)
    wide = (
        from_query.map(lambda x: x[:, :, None].expand(-1, -1, tensors["key"].shape[1], -1)),
        from_key.map(lambda x: x[:, None].expand(-1, tensors["query"].shape[1], -1, -1)),
    )
    before_tanh = precision.stored(add(*wide, arithmetic))
    hidden = precision.stored(activation(before_tanh, "tanh", arithmetic))
    column = operands["w_score"].map(lambda x: x[:, None])
    scores = precision.stored(matmul(hidden, column, arithmetic)).map(lambda x: x[..., 0])
    weights = softmax(scores, tensors.get("mask"), precision)
    out = precision.stored(mix(weights, operands["value"], arithmetic))
    return Forward(
        operands=operands, before_tanh=before_tanh, hidden=hidden, weights=weights, out=out
    )


def _linear(x: Enclosure, weight: Enclosure, precision: Precision) -> Enclosure:
    """Enclose x times the transposed weight."""
    transposed = weight.map(lambda matrix: matrix.mT)
    return precision.stored(matmul(x, transposed, precision.arithmetic))


def softmax(scores: Enclosure, mask: torch.Tensor | None, precision: Precision) -> Enclosure:
    """Enclose the softmax of scores over the keys that a mask leaves, as the module derives it.

    Args:
        scores: (batch, queries, keys).
        mask: (batch, keys), true for real states; None leaves all.
        precision: the roundings.
    """
    u, count = precision.arithmetic.u, scores.value.shape[-1]
    is_real = torch.ones_like(scores.value, dtype=torch.bool)
    if mask is not None:
        is_real = mask[:, None].expand_as(is_real)
    real = scores.value.masked_fill(~is_real, -torch.inf)
    p = torch.softmax(real, -1)
    radius = scores.radius.masked_fill(~is_real, 0.0)
    gap = (real.amax(-1, keepdim=True) - real).masked_fill(~is_real, 0.0)
    step = u + precision.storage  # each difference may be stored too
    theta = radius + radius.amax(-1, keepdim=True)
    theta = theta + step * (gap + (p * gap).sum(-1, keepdim=True))
    theta = theta + (2 * precision.arithmetic.elementary + count + 4) * u
    theta = theta + 3 * precision.storage
    error = p * torch.expm1(theta.clamp(max=700.0))
    floor = precision.arithmetic.floor + precision.floor
    error = torch.minimum(error + 2 * floor, torch.ones_like(p)).masked_fill(~is_real, 0.0)
    return precision.stored(Enclosure(p, error))


def backward(
    enclosed: Forward, grad_out: torch.Tensor, profile: AdditiveAttentionProfile, dtype: torch.dtype
) -> dict[str, Enclosure]:
    """Enclose the gradients of every operand but the mask.

    Args:
        enclosed: the forward pass.
        grad_out: the incoming gradient, exact as stored.
        profile: the declared answers.
        dtype: the storage type.
    """
    computed = profile.float64_precision.computed_in(dtype)
    precision = Precision.of(computed)
    arithmetic, operands, p = precision.arithmetic, enclosed.operands, enclosed.weights
    exact = grad_out.detach().double()
    narrowed = arithmetic.u if computed is not dtype else 0.0
    g = Enclosure(exact, narrowed * exact.abs())
    d_value = precision.stored(mix(p.map(lambda x: x.mT), g, arithmetic))
    dp = precision.stored(inner(g, operands["value"], arithmetic))
    by_weights = total(precision.stored(multiply(p, dp, arithmetic)), arithmetic, -1)
    by_output = total(precision.stored(multiply(g, enclosed.out, arithmetic)), arithmetic, -1)
    row = Enclosure(by_weights.value, torch.maximum(by_weights.radius, by_output.radius))
    row = precision.stored(row.map(lambda x: x[..., None].expand_as(dp.value)))
    difference = precision.stored(add(dp, Enclosure(-row.value, row.radius), arithmetic))
    dx = precision.stored(multiply(p, difference, arithmetic), 2)
    # p dp − p (Σ p dp) is the same, with two products that are rounded each
    apart = 2 * (arithmetic.u + precision.storage) * p.magnitude * (dp.magnitude + row.magnitude)
    dx = Enclosure(dx.value, (dx.radius + apart).masked_fill(p.radius + p.value == 0, 0.0))
    flat = dx.map(lambda x: x.reshape(1, -1))
    d_score = matmul(flat, enclosed.hidden.map(lambda x: x.flatten(0, 2)), arithmetic)
    v = operands["w_score"].map(lambda x: x.expand_as(enclosed.hidden.value))
    through = dx.map(lambda x: x[..., None].expand_as(enclosed.hidden.value))
    dt = precision.stored(multiply(through, v, arithmetic))
    slope = precision.stored(activation_slope(enclosed.before_tanh, "tanh", arithmetic), 2)
    dz = precision.stored(multiply(dt, slope, arithmetic))
    da = precision.stored(total(dz, arithmetic, 2))
    db = precision.stored(total(dz, arithmetic, 1))
    result = {
        "query": precision.stored(matmul(da, operands["w_query"], arithmetic)),
        "key": precision.stored(matmul(db, operands["w_key"], arithmetic)),
        "value": d_value,
        "w_query": _outer(da, operands["query"], precision),
        "w_key": _outer(db, operands["key"], precision),
        "w_score": precision.stored(d_score.map(lambda x: x[0])),
    }
    if "bias" in operands:
        every = db.map(lambda x: x.flatten(0, 1))
        result["bias"] = precision.stored(total(every, arithmetic, 0))
    return result


def _outer(left: Enclosure, right: Enclosure, precision: Precision) -> Enclosure:
    """Enclose the sum over texts and positions of left ⊗ right; each text may be stored alone."""
    rows = left.map(lambda x: x.flatten(0, 1)), right.map(lambda x: x.flatten(0, 1))
    product = matmul(rows[0].map(lambda x: x.mT), rows[1], precision.arithmetic)
    apart = rows[0].magnitude.mT @ rows[1].magnitude
    return precision.stored(precision.added(product, apart))
