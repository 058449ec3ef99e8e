"""The worst error of a router, of experts and of their gradients, element by element.

**Router.** Logits are enclosed as a matrix product. A choice S of k experts is allowed if some
logits inside the enclosure have S on top: each ℓ_e + r_e, e in S, is at least each ℓ_l − r_l, l
outside. Two logits closer than the sum of their radii so have two allowed results, and the scores
are judged for the choice that was made.

A score of a softmax has a relative error of expm1(r_e + max r + ρ): r moves numerator and
denominator, and ρ = u(2c + |ℓ_e − m| + Σ p|ℓ − m| + n + 6) holds the roundings of the differences
from the maximum m, of exp with error c, of the sum of n terms and of the quotient. A logistic score
has expm1(r_e) + (c + 8)u. Division by the sum of k scores doubles the relative error and adds
(k + 2)u. A score that is stored at each step adds one roundoff of the storage type a step.

**Gradient of the router.** For a fixed choice with normalized scores w and cotangent v,
dℓ = w(v − Σ wv); without normalization, of all experts, dℓ = p(v − Σ pv) with v zero outside S; of
logistic scores, dℓ = s(1 − s)v. Every term is a product and a sum of scores: its error is at most
the sum of the absolute values of the terms times the relative errors of its factors and γ over the
roundings.

**Experts.** The result of each chosen expert is enclosed as a gated MLP, multiplied by its score,
and summed over the k experts of a token; each partial sum may be stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int

from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    matmul,
    multiply,
    total,
)
from attnspec.conformance.operators.gated_mlp import bounds as gated_mlp
from attnspec.conformance.operators.precision import Precision, linear
from attnspec.spec.experts import RouterProfile, RouterScores
from attnspec.spec.gated_mlp import GateForm
from attnspec.spec.profiles import Float64Precision

Weights = Mapping[str, torch.Tensor]


def logits(
    x: Float64[torch.Tensor, "tokens d_model"],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    precision: Precision,
) -> Enclosure:
    """Enclose the logits of a router."""
    return linear(Enclosure.exact(x), weight, bias, precision)


def compared(enclosed: Enclosure, profile: RouterProfile, precision: Precision) -> Enclosure:
    """Return the logits as the choice compares them.

    A choice by scores compares rounded scores: one of relative error ρ and absolute error φ is that
    of a logit which moved by ρ + log(1 + φ/score). So scores that underflow are all alike.
    """
    if profile.scores is RouterScores.SOFTMAX_CHOSEN:
        return enclosed
    arithmetic, count = _score_arithmetic(profile, precision), enclosed.value.shape[-1]
    if profile.scores is RouterScores.SIGMOID:
        exact = torch.sigmoid(enclosed.value)
        sensitivity = torch.sigmoid(-enclosed.value)  # of log σ to its logit
    else:
        exact = torch.softmax(enclosed.value, -1)
        sensitivity = torch.ones_like(exact)
    spread = (enclosed.value - enclosed.value.amax(-1, keepdim=True)).abs()
    relative = arithmetic.u * (spread + 2 * arithmetic.elementary + count + 8)
    relative = relative + arithmetic.u * enclosed.magnitude + precision.storage
    absolute = arithmetic.floor + precision.floor
    moved = relative + torch.log1p(absolute / exact.clamp(min=1e-300))
    return Enclosure(enclosed.value, enclosed.radius + 2 * moved / sensitivity.clamp(min=1e-300))


def is_allowed(
    enclosed: Enclosure, indices: Int[torch.Tensor, "tokens top_k"]
) -> Bool[torch.Tensor, " tokens"]:
    """Return whether each token's choice is on top for some logits inside their enclosure."""
    chosen = torch.zeros_like(enclosed.value, dtype=torch.bool).scatter(-1, indices, True)
    least = torch.where(chosen, enclosed.value + enclosed.radius, torch.inf).amin(-1)
    most = torch.where(chosen, -torch.inf, enclosed.value - enclosed.radius).amax(-1)
    return least >= most


def _score_arithmetic(profile: RouterProfile, precision: Precision) -> Arithmetic:
    if profile.scores_precision is Float64Precision.FLOAT32:
        return Arithmetic.of(torch.float32)
    return precision.arithmetic


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of a choice, enclosed.

    Attributes:
        chosen: the scores of the chosen experts, in the order of the indices.
        weights: the softmax over all experts; of other scores, the chosen ones in their places.
        relative: the relative error of any of them.
    """

    chosen: Enclosure
    weights: Float64[torch.Tensor, "tokens experts"]
    relative: Float64[torch.Tensor, "tokens experts"]


def scores(
    enclosed: Enclosure,
    indices: Int[torch.Tensor, "tokens top_k"],
    profile: RouterProfile,
    precision: Precision,
) -> Scores:
    """Enclose the scores of a choice."""
    arithmetic = _score_arithmetic(profile, precision)
    value, radius = enclosed.value, enclosed.radius
    if arithmetic != precision.arithmetic:  # logits are rounded to the type of the scores first
        radius = radius + arithmetic.u * enclosed.magnitude + arithmetic.floor
    u, c, count = arithmetic.u, arithmetic.elementary, value.shape[-1]
    kept = torch.zeros_like(value, dtype=torch.bool).scatter(-1, indices, True)
    if profile.scores is RouterScores.SOFTMAX_ALL:
        kept = torch.ones_like(kept)
    if profile.scores is RouterScores.SIGMOID:
        weights = torch.sigmoid(value).masked_fill(~kept, 0.0)
        relative = torch.expm1(radius) + (c + 8) * u
    else:
        low = value.masked_fill(~kept, -torch.inf)
        weights = torch.exp(low - low.amax(-1, keepdim=True))
        weights = weights / weights.sum(-1, keepdim=True)
        spread = (value - low.amax(-1, keepdim=True)).abs().masked_fill(~kept, 0.0)
        mean = (weights * spread).sum(-1, keepdim=True)
        rounding = u * (2 * c + spread + mean + count + 6)
        largest = radius.masked_fill(~kept, 0.0).amax(-1, keepdim=True)
        relative = torch.expm1(radius + largest + rounding)
    relative = relative + precision.storage * (1 + precision.storage)
    chosen = weights.gather(-1, indices)
    error = relative.gather(-1, indices)
    if profile.renormalized:
        worst = error.amax(-1, keepdim=True)
        chosen = chosen / chosen.sum(-1, keepdim=True)
        error = (error + worst) / (1 - worst) + (indices.shape[-1] + 2) * u
        error = error + 3 * precision.storage
    floor = 4 * arithmetic.floor + 2 * precision.floor
    return Scores(
        chosen=Enclosure(chosen, chosen * error + floor), weights=weights, relative=relative
    )


def router_backward(
    x: Float64[torch.Tensor, "tokens d_model"],
    weight: torch.Tensor,
    given: Scores,
    indices: Int[torch.Tensor, "tokens top_k"],
    cotangent: Float64[torch.Tensor, "tokens top_k"],
    profile: RouterProfile,
    precision: Precision,
) -> dict[str, Enclosure]:
    """Enclose the gradients of x, weight and bias, for this choice and cotangent of its scores."""
    arithmetic = _score_arithmetic(profile, precision)
    places = torch.zeros_like(given.weights)
    v = places.scatter(-1, indices, cotangent.double())
    w = places.scatter(-1, indices, given.chosen.value)
    count, top_k = given.weights.shape[-1], indices.shape[-1]
    roundings = arithmetic.gamma(2 * count + 4 * top_k + 32) + 12 * precision.storage
    error = 4 * given.relative.masked_fill(given.weights == 0, 0.0).amax(-1, keepdim=True)
    error = error + roundings
    if profile.scores is RouterScores.SIGMOID:
        slopes = given.weights * (1 - given.weights)
        if profile.renormalized:
            sums = given.weights.gather(-1, indices).sum(-1, keepdim=True)
            inner, sizes = _centred(v, w)
            value = slopes * inner / sums
            size = given.weights * sizes / sums
        else:
            value, size = slopes * v, given.weights * v.abs()
    elif profile.scores is RouterScores.SOFTMAX_ALL and not profile.renormalized:
        inner, sizes = _centred(v, given.weights)
        value, size = given.weights * inner, given.weights * sizes
    else:
        inner, sizes = _centred(v, w)
        value, size = w * inner, w * sizes
        if profile.scores is RouterScores.SOFTMAX_ALL:
            # outside the choice the exact gradient is zero, the difference of two equal terms
            size = torch.maximum(size, given.weights * sizes)
    floor = 8 * arithmetic.floor + 4 * precision.floor
    d_logits = Enclosure(value, 2 * error * size + floor * (size > 0))
    exact, matrix = Enclosure.exact(x), Enclosure.exact(weight)
    transposed = d_logits.map(lambda y: y.mT)
    return {
        "x": precision.stored(matmul(d_logits, matrix, precision.arithmetic)),
        "weight": precision.stored(matmul(transposed, exact, precision.arithmetic)),
        "bias": precision.stored(total(d_logits, precision.arithmetic, 0)),
    }


def _centred(v: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return v − Σ wv, and the sum of the absolute values of its terms."""
    mean = (weights * v).sum(-1, keepdim=True)
    return v - mean, v.abs() + (weights * v.abs()).sum(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One expert of a call.

    Attributes:
        expert: its index; None is the shared expert.
        token: the tokens that chose it.
        place: the places of it in their choices.
        weights: its weights.
        enclosed: its gated MLP.
    """

    expert: int | None
    token: Int[torch.Tensor, " chosen"]
    place: Int[torch.Tensor, " chosen"]
    weights: Weights
    enclosed: gated_mlp.Forward


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The enclosures of one call.

    Attributes:
        parts: its experts.
        out: the result.
    """

    parts: tuple[Part, ...]
    out: Enclosure


def forward(
    x: Float64[torch.Tensor, "tokens d_model"],
    indices: Int[torch.Tensor, "tokens top_k"],
    scores: torch.Tensor,
    weights: Weights,
    shared: Weights | None,
    form: GateForm,
    precision: Precision,
) -> Forward:
    """Enclose a call of experts; inputs, scores and weights are exact as stored."""
    parts = []
    for expert in range(len(weights["gate"])):
        token, place = (indices == expert).nonzero(as_tuple=True)
        own = {name: weight[expert] for name, weight in weights.items()}
        enclosed = gated_mlp.forward(x[token], own, form, precision)
        parts.append(Part(expert=expert, token=token, place=place, weights=own, enclosed=enclosed))
    if shared is not None:
        every = torch.arange(len(x))
        enclosed = gated_mlp.forward(x, shared, form, precision)
        parts.append(Part(expert=None, token=every, place=every, weights=shared, enclosed=enclosed))
    terms = []
    for part in parts:
        term = part.enclosed.out
        if part.expert is not None:
            score = Enclosure.exact(scores[part.token, part.place, None])
            term = precision.stored(multiply(score, term, precision.arithmetic))
        terms.append((part.token, term))
    count = indices.shape[-1] + (shared is not None)
    return Forward(parts=tuple(parts), out=_summed(terms, x.shape, count, precision))


def _summed(
    terms: list[tuple[torch.Tensor, Enclosure]],
    shape: torch.Size,
    count: int,
    precision: Precision,
) -> Enclosure:
    """Enclose the sums over the experts of each token, of which each partial sum may be stored."""
    value, radius, size = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
    for token, term in terms:
        value.index_add_(0, token, term.value)
        radius.index_add_(0, token, term.radius)
        size.index_add_(0, token, term.magnitude)
    gamma = precision.arithmetic.gamma(count) + count * precision.storage * (
        1 + count * precision.storage
    )
    floor = count * (precision.arithmetic.floor + precision.floor)
    return Enclosure(value, radius + gamma * size + floor)


def backward(
    enclosed: Forward,
    scores: torch.Tensor,
    cotangent: Float64[torch.Tensor, "tokens d_model"],
    precision: Precision,
) -> dict[str, Enclosure]:
    """Enclose the gradients of x, scores and every weight; those of a shared expert are prefixed.

    With the cotangent v of a token, an expert with score s has the cotangent sv, and its score the
    gradient Σ v·MLP(x); the gradients of x are summed over the experts of a token.
    """
    arithmetic = precision.arithmetic
    v = Enclosure.exact(cotangent)
    terms = []
    result: dict[str, Enclosure] = {}
    stacked: dict[str, list[Enclosure]] = {}
    d_scores = Enclosure.exact(torch.zeros(scores.shape))
    for part in enclosed.parts:
        own = v.map(lambda y, part=part: y[part.token])  # type: ignore[misc]
        if part.expert is not None:
            d_score = total(multiply(own, part.enclosed.out, arithmetic), arithmetic, -1)
            d_score = precision.added(d_score, _sizes(own, part.enclosed.out))
            d_score = precision.stored(d_score)
            d_scores.value[part.token, part.place] = d_score.value
            d_scores.radius[part.token, part.place] = d_score.radius
            score = Enclosure.exact(scores[part.token, part.place, None])
            own = precision.stored(multiply(score, own, arithmetic))
        gradients = gated_mlp.backward(part.enclosed, part.weights, own, precision)
        terms.append((part.token, gradients.pop("x")))
        for name, gradient in gradients.items():
            if part.expert is None:
                result[f"shared_{name}"] = gradient
            else:
                stacked.setdefault(name, []).append(gradient)
    for name, gradients_of in stacked.items():
        result[name] = Enclosure(
            torch.stack([each.value for each in gradients_of]),
            torch.stack([each.radius for each in gradients_of]),
        )
    count = scores.shape[-1] + 2
    result["x"] = _summed(terms, cotangent.shape, count, precision)
    result["scores"] = Enclosure(d_scores.value, d_scores.radius)
    return result


def _sizes(left: Enclosure, right: Enclosure) -> torch.Tensor:
    """Return Σ|xy|, the error of stored products in units of the storage roundoff."""
    return (left.magnitude * right.magnitude).sum(-1)
