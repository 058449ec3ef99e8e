"""The worst error of a GPT-2's gradients, element by element: the reverse pass in enclosures.

The cotangent of the logits is given exactly; everything the reverse pass reads (activations,
weights p, spreads s) is an enclosure from `attnspec.conformance.model_bounds`. A step that is a sum
of products is enclosed as such: carried by the product rule with both factors at the far end of
their radii, fresh by γ over the number of roundings times the sum of the absolute values of the
terms. So the radius holds for the reverse pass of automatic differentiation on any correct way to
write the forward pass, and for the closed forms that fused kernels use.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from jaxtyping import Float64, Int

from attnspec.conformance.model_activation import activation_slope
from attnspec.conformance.model_arithmetic import (
    Arithmetic,
    Enclosure,
    add,
    concatenate,
    enclose,
    euclidean,
    inner,
    matmul,
    merge_heads,
    mix,
    multiply,
    total,
)
from attnspec.conformance.model_bounds import (
    Attended,
    Block,
    Forward,
    Normalized,
    head_weight,
)
from attnspec.spec import GPT2Config

Gradients = dict[str, Enclosure]


def gradients(
    config: GPT2Config,
    weights: Mapping[str, torch.Tensor],
    input_ids: Int[torch.Tensor, "batch length"],
    passed: Forward,
    cotangent: Float64[torch.Tensor, "batch length vocab"],
    arithmetic: Arithmetic,
) -> Gradients:
    """Enclose d(Σ cotangent·logits)/d(weight) of every weight; rows start at position 0."""
    exact = {name: each.detach().double() for name, each in weights.items()}
    found: dict[str, list[Enclosure]] = defaultdict(list)
    given = Enclosure.exact(cotangent)
    head = "transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    found[head].append(_outer(given, passed.final.result, arithmetic))
    stream = matmul(given, Enclosure.exact(head_weight(config, exact)), arithmetic)
    stream = _layer_norm(stream, passed.final, "transformer.ln_f", exact, found, arithmetic)
    for layer in reversed(range(config.n_layer)):
        own = f"transformer.h.{layer}"
        stream = _block(stream, passed.blocks[layer], own, config, exact, found, arithmetic)
    found["transformer.wte.weight"].append(
        _scatter(stream, input_ids, config.vocab_size, arithmetic)
    )
    places = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
    found["transformer.wpe.weight"].append(_scatter(stream, places, config.n_positions, arithmetic))
    return {name: _sum(parts, arithmetic) for name, parts in found.items()}


def _sum(parts: list[Enclosure], arithmetic: Arithmetic) -> Enclosure:
    """A weight used twice has the sum of both gradients."""
    first, *others = parts
    for each in others:
        first = add(first, each, arithmetic)
    return first


def _flat(x: Enclosure) -> Enclosure:
    return x.map(lambda y: y.flatten(0, -2))


def _outer(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Σ over tokens of left ⊗ right."""
    return matmul(_flat(left).map(lambda x: x.mT), _flat(right), arithmetic)


def _scatter(
    given: Enclosure, rows: Int[torch.Tensor, "batch length"], count: int, arithmetic: Arithmetic
) -> Enclosure:
    """Add each token's gradient to its row of an embedding: a product with a matrix of 0 and 1."""
    chosen = torch.nn.functional.one_hot(rows.flatten(), count).double()
    return matmul(Enclosure.exact(chosen.mT), _flat(given), arithmetic)


def _linear(
    given: Enclosure,
    entered: Enclosure,
    name: str,
    exact: Mapping[str, torch.Tensor],
    found: dict[str, list[Enclosure]],
    arithmetic: Arithmetic,
) -> Enclosure:
    """Reverse xW + b."""
    found[f"{name}.weight"].append(_outer(entered, given, arithmetic))
    found[f"{name}.bias"].append(total(_flat(given), arithmetic, 0))
    return matmul(given, Enclosure.exact(exact[f"{name}.weight"].mT), arithmetic)


def _layer_norm(
    given: Enclosure,
    norm: Normalized,
    name: str,
    exact: Mapping[str, torch.Tensor],
    found: dict[str, list[Enclosure]],
    arithmetic: Arithmetic,
) -> Enclosure:
    """Reverse y·gain + bias: with a = gradient·gain, (a − mean(a) − y mean(a∘y))/s.

    Automatic differentiation takes the mean of everything before the division once more, which is
    exact for mean(a) and adds y's mean, zero but for rounding, times mean(a∘y): hence the terms
    A + mean(A), A = |a| + |y| mean(|a∘y|), for the fresh part, with 3n + 24 roundings.
    By norm, the map of a is (1 − 11ᵀ/n − yyᵀ/n)/s, at most 1/s; a y that moves by ν turns it by
    ν(2‖y‖ + ν)/n at most, and moves its result by (ν(|y·a| + ν‖a‖) + ‖y‖ν‖a‖)/n.
    """
    n = norm.unit.value.shape[-1]
    found[f"{name}.weight"].append(
        total(_flat(multiply(given, norm.unit, arithmetic)), arithmetic, 0)
    )
    found[f"{name}.bias"].append(total(_flat(given), arithmetic, 0))
    a = multiply(given, Enclosure.exact(exact[f"{name}.weight"]), arithmetic)
    y, s = norm.unit, norm.deviation
    overlap = _mean(a.value * y.value)
    inside = a.value - _mean(a.value) - y.value * overlap
    moved = _mean(torch.minimum(a.most * y.radius + a.radius * y.value.abs(), _far(a, y)))
    carried = (
        a.radius + _mean(a.radius) + y.radius * (overlap.abs() + moved) + y.value.abs() * moved
    )  # fmt: skip
    lengths, slack = euclidean(y.value), y.slack
    turned = slack * (2 * lengths + slack) / n
    carried_norm = (
        a.slack * (1 + turned)
        + (
            slack * (n * overlap.abs() + slack * euclidean(a.value))
            + lengths * slack * euclidean(a.value)
        )
        / n
    )
    overlap_most = _mean(a.most * y.most)
    terms = a.most + y.most * overlap_most
    # the computed y has a mean of at most mean(r_y), not zero
    fresh = arithmetic.gamma(3 * n + 24) * (terms + _mean(terms)) + _mean(y.radius) * overlap_most
    value = inside / s.value
    least = (s.value - s.radius).clamp(min=0)
    return enclose(
        value,
        (carried + value.abs() * s.radius) / least,
        (carried_norm + euclidean(value) * s.radius) / least,
        fresh / least,
    )


def _far(a: Enclosure, y: Enclosure) -> torch.Tensor:
    """The same error of the overlap by Cauchy and Schwarz, spread evenly over the channels."""
    n = a.value.shape[-1]
    return (euclidean(a.most) * y.slack + a.slack * euclidean(y.value)) / n


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1, keepdim=True)


def _block(
    given: Enclosure,
    done: Block,
    own: str,
    config: GPT2Config,
    exact: Mapping[str, torch.Tensor],
    found: dict[str, list[Enclosure]],
    arithmetic: Arithmetic,
) -> Enclosure:
    """Reverse one block: each residual adds the gradient of its branch to its own."""
    hidden = _linear(given, done.after, f"{own}.mlp.c_proj", exact, found, arithmetic)
    slope = activation_slope(done.before, config.activation_function, arithmetic)
    hidden = multiply(hidden, slope, arithmetic)
    branch = _linear(
        hidden, done.normalized_again.result, f"{own}.mlp.c_fc", exact, found, arithmetic
    )
    branch = _layer_norm(branch, done.normalized_again, f"{own}.ln_2", exact, found, arithmetic)
    given = add(given, branch, arithmetic)
    mixed = _linear(given, done.merged, f"{own}.attn.c_proj", exact, found, arithmetic)
    heads = mixed.map(lambda x: x.unflatten(-1, (config.n_head, -1)).transpose(-3, -2))
    thirds = _attention(heads, done, done.attended, arithmetic)
    joined = concatenate([merge_heads(each) for each in thirds])
    branch = _linear(joined, done.normalized.result, f"{own}.attn.c_attn", exact, found, arithmetic)
    branch = _layer_norm(branch, done.normalized, f"{own}.ln_1", exact, found, arithmetic)
    return add(given, branch, arithmetic)


def _attention(
    given: Enclosure, done: Block, attended: Attended, arithmetic: Arithmetic
) -> tuple[Enclosure, Enclosure, Enclosure]:
    """Reverse softmax attention: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − D), dQ = dS K, dK = dSᵀQ.

    D is Σ P∘dP, or the row sum of dO∘O, whichever errs more. P may be rebuilt from the log-sum-exp:
    its exponent then errs by 4u(|m| + ln keys + 1) at most, with |m| no larger than the row's
    largest score, whose error the weights' radius already holds; twice that radius covers both.
    """
    p, q, k, v = attended.weights, done.query, done.key, done.value
    p = Enclosure(p.value, 2 * p.radius)
    values = mix(p.map(lambda x: x.mT), given, arithmetic)
    dp = inner(given, v, arithmetic)
    by_weights = total(multiply(p, dp, arithmetic), arithmetic, -1)
    by_output = total(multiply(given, attended.result, arithmetic), arithmetic, -1)
    row = Enclosure(by_weights.value, torch.maximum(by_weights.radius, by_output.radius))
    row = row.map(lambda x: x[..., None])
    difference = add(dp, Enclosure(-row.value, row.radius), arithmetic)
    scores = multiply(p, difference, arithmetic)
    # scores that nobody may read have no gradient at all
    scores = Enclosure(scores.value, scores.radius.masked_fill(p.radius == 0, 0.0))
    queries = _scaled(mix(scores, k, arithmetic, spare=4), done.scale)
    others = _scaled(mix(scores.map(lambda x: x.mT), q, arithmetic, spare=4), done.scale)
    return queries, others, values


def _scaled(x: Enclosure, scale: float) -> Enclosure:
    return Enclosure(x.value * scale, x.radius * abs(scale), x.slack * abs(scale))
