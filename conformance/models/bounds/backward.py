"""The worst error of a GPT-2's gradients, element by element: the reverse pass in enclosures.

The cotangent of the logits is exact; everything the reverse pass reads (activations, weights p,
spreads s) is an enclosure from `bounds.forward`. A step that is a sum of products is enclosed as
a sum: carried by the product rule with both factors at the far end of their radii, fresh by γ over
the number of roundings times the sum of the absolute values of the terms. So the radius holds for
automatic differentiation of any correct forward pass, and for the closed forms of fused kernels.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from jaxtyping import Float64, Int

from attnspec.conformance.models.bounds.activation import activation_slope
from attnspec.conformance.models.bounds.enclosure import (
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
from attnspec.conformance.models.bounds.forward import (
    Attended,
    Block,
    Forward,
    Normalized,
    head_weight,
)
from attnspec.spec import GPT2Config

Gradients = dict[str, Enclosure]
Terms = dict[str, list[Enclosure]]
"""The gradients of each use of a weight, by its name."""


def gradients(
    config: GPT2Config,
    weights: Mapping[str, torch.Tensor],
    input_ids: Int[torch.Tensor, "batch length"],
    enclosed: Forward,
    cotangent: Float64[torch.Tensor, "batch length vocab"],
    arithmetic: Arithmetic,
    *,
    position_ids: Int[torch.Tensor, "batch length"] | None = None,
) -> Gradients:
    """Enclose d(Σ cotangent·logits)/d(weight) of every weight; by default rows start at 0."""
    exact = {name: weight.detach().double() for name, weight in weights.items()}
    terms: Terms = defaultdict(list)
    grad = Enclosure.exact(cotangent)
    head = "transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"
    terms[head].append(outer(grad, enclosed.final.result, arithmetic))
    grad = matmul(grad, Enclosure.exact(head_weight(config, exact)), arithmetic)
    grad = reverse_layer_norm(grad, enclosed.final, "transformer.ln_f", exact, terms, arithmetic)
    for layer in reversed(range(config.n_layer)):
        prefix = f"transformer.h.{layer}"
        grad = _block(grad, enclosed.blocks[layer], prefix, config, exact, terms, arithmetic)
    terms["transformer.wte.weight"].append(scatter(grad, input_ids, config.vocab_size, arithmetic))
    positions = position_ids
    if positions is None:
        positions = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
    terms["transformer.wpe.weight"].append(scatter(grad, positions, config.n_positions, arithmetic))
    return {name: sum_terms(of_weight, arithmetic) for name, of_weight in terms.items()}


def sum_terms(terms: list[Enclosure], arithmetic: Arithmetic) -> Enclosure:
    """Return the sum of the gradients of a weight, which may be used twice."""
    result, *others = terms
    for term in others:
        result = add(result, term, arithmetic)
    return result


def flat(x: Enclosure) -> Enclosure:
    """Return the rows of all texts behind one another."""
    return x.map(lambda y: y.flatten(0, -2))


def outer(left: Enclosure, right: Enclosure, arithmetic: Arithmetic) -> Enclosure:
    """Return Σ over tokens of left ⊗ right."""
    return matmul(flat(left).map(lambda x: x.mT), flat(right), arithmetic)


def scatter(
    grad: Enclosure, rows: Int[torch.Tensor, "batch length"], count: int, arithmetic: Arithmetic
) -> Enclosure:
    """Add each token's gradient to its row of an embedding: a product with a matrix of 0 and 1."""
    one_hot = torch.nn.functional.one_hot(rows.flatten(), count).double()
    return matmul(Enclosure.exact(one_hot.mT), flat(grad), arithmetic)


def reverse_linear(
    grad: Enclosure,
    x: Enclosure,
    name: str,
    exact: Mapping[str, torch.Tensor],
    terms: Terms,
    arithmetic: Arithmetic,
) -> Enclosure:
    """Reverse xW + b."""
    terms[f"{name}.weight"].append(outer(x, grad, arithmetic))
    terms[f"{name}.bias"].append(total(flat(grad), arithmetic, 0))
    return matmul(grad, Enclosure.exact(exact[f"{name}.weight"].mT), arithmetic)


def reverse_layer_norm(
    grad: Enclosure,
    norm: Normalized,
    name: str,
    exact: Mapping[str, torch.Tensor],
    terms: Terms,
    arithmetic: Arithmetic,
) -> Enclosure:
    """Reverse y·gain + bias: with a = gradient·gain, (a − mean(a) − y mean(a∘y))/s.

    Automatic differentiation takes the mean of the whole numerator once more, which is exact for
    mean(a) and adds y's mean, zero but for rounding, times mean(a∘y): hence the terms
    A + mean(A), A = |a| + |y| mean(|a∘y|), for the fresh part, with 3n + 24 roundings.
    By norm, the map of a is (1 − 11ᵀ/n − yyᵀ/n)/s, at most 1/s; a y that moves by ν changes it by
    ν(2‖y‖ + ν)/n at most, and moves its result by (ν(|y·a| + ν‖a‖) + ‖y‖ν‖a‖)/n.
    """
    n = norm.unit.value.shape[-1]
    terms[f"{name}.weight"].append(
        total(flat(multiply(grad, norm.unit, arithmetic)), arithmetic, 0)
    )
    terms[f"{name}.bias"].append(total(flat(grad), arithmetic, 0))
    a = multiply(grad, Enclosure.exact(exact[f"{name}.weight"]), arithmetic)
    y, s = norm.unit, norm.deviation
    overlap = _mean(a.value * y.value)
    numerator = a.value - _mean(a.value) - y.value * overlap
    by_element = a.magnitude * y.radius + a.radius * y.value.abs()
    moved = _mean(torch.minimum(by_element, _by_norm(a, y)))
    carried = (
        a.radius + _mean(a.radius) + y.radius * (overlap.abs() + moved) + y.value.abs() * moved
    )  # fmt: skip
    lengths, slack = euclidean(y.value), y.slack
    map_change = slack * (2 * lengths + slack) / n
    carried_norm = (
        a.slack * (1 + map_change)
        + (
            slack * (n * overlap.abs() + slack * euclidean(a.value))
            + lengths * slack * euclidean(a.value)
        )
        / n
    )
    largest_overlap = _mean(a.magnitude * y.magnitude)
    sizes = a.magnitude + y.magnitude * largest_overlap
    # the computed y has a mean of at most mean(r_y), not zero
    rounding = arithmetic.gamma(3 * n + 24) * (sizes + _mean(sizes))
    fresh = rounding + _mean(y.radius) * largest_overlap
    value = numerator / s.value
    lowest = (s.value - s.radius).clamp(min=0)
    return enclose(
        value,
        (carried + value.abs() * s.radius) / lowest,
        (carried_norm + euclidean(value) * s.radius) / lowest,
        fresh / lowest,
    )


def _by_norm(a: Enclosure, y: Enclosure) -> torch.Tensor:
    """Return the error of the overlap by Cauchy and Schwarz, spread evenly over the channels."""
    n = a.value.shape[-1]
    return (euclidean(a.magnitude) * y.slack + a.slack * euclidean(y.value)) / n


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1, keepdim=True)


def _block(
    grad: Enclosure,
    block: Block,
    prefix: str,
    config: GPT2Config,
    exact: Mapping[str, torch.Tensor],
    terms: Terms,
    arithmetic: Arithmetic,
) -> Enclosure:
    """Back-propagate through one block, adding the gradients of each skip path and branch."""
    hidden = reverse_linear(grad, block.activated, f"{prefix}.mlp.c_proj", exact, terms, arithmetic)
    slope = activation_slope(block.pre_activation, config.activation_function, arithmetic)
    hidden = multiply(hidden, slope, arithmetic)
    branch = reverse_linear(
        hidden, block.ln_2.result, f"{prefix}.mlp.c_fc", exact, terms, arithmetic
    )
    branch = reverse_layer_norm(branch, block.ln_2, f"{prefix}.ln_2", exact, terms, arithmetic)
    grad = add(grad, branch, arithmetic)
    merged = reverse_linear(
        grad, block.merged_heads, f"{prefix}.attn.c_proj", exact, terms, arithmetic
    )
    heads = merged.map(lambda x: x.unflatten(-1, (config.n_head, -1)).transpose(-3, -2))
    operands = (block.query, block.key, block.value)
    thirds = reverse_attention(heads, operands, block.attended, block.scale, arithmetic)
    joined = concatenate([merge_heads(third) for third in thirds])
    branch = reverse_linear(
        joined, block.ln_1.result, f"{prefix}.attn.c_attn", exact, terms, arithmetic
    )
    branch = reverse_layer_norm(branch, block.ln_1, f"{prefix}.ln_1", exact, terms, arithmetic)
    return add(grad, branch, arithmetic)


def reverse_attention(
    grad: Enclosure,
    operands: tuple[Enclosure, Enclosure, Enclosure],
    attended: Attended,
    scale: float,
    arithmetic: Arithmetic,
) -> tuple[Enclosure, Enclosure, Enclosure]:
    """Reverse softmax attention: dV = PᵀdO, dP = dO Vᵀ, dS = P∘(dP − D), dQ = dS K, dK = dSᵀQ.

    D is Σ P∘dP, or the row sum of dO∘O, whichever errs more. P may be rebuilt from the log-sum-exp:
    its exponent then errs by 4u(|m| + ln keys + 1) at most, with |m| no larger than the row's
    largest score, whose error the weights' radius already holds; twice that radius covers both.
    """
    p, (q, k, v) = attended.weights, operands
    p = Enclosure(p.value, 2 * p.radius)
    d_value = mix(p.map(lambda x: x.mT), grad, arithmetic)
    dp = inner(grad, v, arithmetic)
    by_weights = total(multiply(p, dp, arithmetic), arithmetic, -1)
    by_output = total(multiply(grad, attended.result, arithmetic), arithmetic, -1)
    row = Enclosure(by_weights.value, torch.maximum(by_weights.radius, by_output.radius))
    row = row.map(lambda x: x[..., None])
    difference = add(dp, Enclosure(-row.value, row.radius), arithmetic)
    scores = multiply(p, difference, arithmetic)
    # scores of hidden keys have no gradient at all
    scores = Enclosure(scores.value, scores.radius.masked_fill(p.radius == 0, 0.0))
    d_query = _scaled(mix(scores, k, arithmetic, spare=4), scale)
    d_key = _scaled(mix(scores.map(lambda x: x.mT), q, arithmetic, spare=4), scale)
    return d_query, d_key, d_value


def _scaled(x: Enclosure, scale: float) -> Enclosure:
    return Enclosure(x.value * scale, x.radius * abs(scale), x.slack * abs(scale))
