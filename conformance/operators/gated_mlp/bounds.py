"""The worst error of a gated MLP and of its gradients, element by element, from the data.

Forward: g = W_g x + b_g, u = W_u x + b_u, h = f(ḡ)(ū + c), y = W_d h + b_d. A matrix product is
enclosed in the working precision and then stored; a bias is added before or after it is stored, so
that two roundings of the storage type are allowed, or it is one more term of the sum. The result
holds for any order of summation, for fused kernels and for those that store every intermediate
result.

Backward, with the cotangent v of y: dh = W_dᵀv, df = dh(ū + c), du = dh f(ḡ), dg = df f′(ḡ),
dx = W_gᵀdg + W_uᵀdu; dW_d = Σ v ⊗ h, dW_g = Σ dg ⊗ x, dW_u = Σ du ⊗ x over tokens, and the
gradients of the biases are sums of v, dg and du over tokens. Every one of them is stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64

from attnspec.conformance.models.bounds.enclosure import (
    Enclosure,
    concatenate,
    matmul,
    multiply,
    total,
)
from attnspec.conformance.operators.gated_mlp.gates import Gated, gated
from attnspec.conformance.operators.precision import Precision, linear
from attnspec.spec.gated_mlp import GateForm

Weights = Mapping[str, torch.Tensor]
"""`gate`, `up`, `down` and, if there are any, `gate_bias`, `up_bias`, `down_bias`."""


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The enclosures of one call.

    Attributes:
        x: the input.
        gated: gate and up, and their product.
        out: the result.
    """

    x: Enclosure
    gated: Gated
    out: Enclosure


def forward(
    x: Float64[torch.Tensor, "tokens d_model"],
    weights: Weights,
    form: GateForm,
    precision: Precision,
) -> Forward:
    """Enclose a gated MLP; inputs and weights are exact as stored."""
    exact = Enclosure.exact(x)
    gate = linear(exact, weights["gate"], weights.get("gate_bias"), precision)
    up = linear(exact, weights["up"], weights.get("up_bias"), precision)
    inner = gated(gate, up, form, precision)
    out = linear(inner.hidden, weights["down"], weights.get("down_bias"), precision)
    return Forward(x=exact, gated=inner, out=out)


def backward(
    enclosed: Forward, weights: Weights, cotangent: Enclosure, precision: Precision
) -> dict[str, Enclosure]:
    """Enclose the gradients of x and of every weight, for this cotangent of the result."""
    arithmetic, inner = precision.arithmetic, enclosed.gated
    down = Enclosure.exact(weights["down"])
    d_hidden = precision.stored(matmul(cotangent, down, arithmetic))
    d_activated = precision.stored(multiply(d_hidden, inner.factor, arithmetic))
    d_gate = precision.stored(multiply(d_activated, inner.gate_slope, arithmetic), 2)
    d_up = precision.stored(multiply(d_hidden, inner.activated, arithmetic))
    if inner.up_slope is not None:
        d_up = multiply(d_up, inner.up_slope, arithmetic)
    both = concatenate([d_gate, d_up])
    packed = Enclosure.exact(torch.cat([weights["gate"].double(), weights["up"].double()]))
    d_x = matmul(both, packed, arithmetic)
    if precision.storage:  # each of the two products is stored before they are added
        parts = d_gate.magnitude @ weights["gate"].double().abs()
        parts = parts + d_up.magnitude @ weights["up"].double().abs()
        d_x = precision.added(d_x, parts)
    gradients = {
        "x": precision.stored(d_x),
        "gate": _outer(d_gate, enclosed.x, precision),
        "up": _outer(d_up, enclosed.x, precision),
        "down": _outer(cotangent, inner.hidden, precision),
    }
    sources = {"gate_bias": d_gate, "up_bias": d_up, "down_bias": cotangent}
    for name, source in sources.items():
        if weights.get(name) is not None:
            gradients[name] = precision.stored(total(source, arithmetic, 0))
    return gradients


def _outer(left: Enclosure, right: Enclosure, precision: Precision) -> Enclosure:
    """Return Σ over tokens of left ⊗ right, stored; without tokens, zeros."""
    if not len(left.value):
        return Enclosure.exact(left.value.mT @ right.value)
    return precision.stored(matmul(left.map(lambda x: x.mT), right, precision.arithmetic))
