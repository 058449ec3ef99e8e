"""The worst error of a GPT-2, element by element: forward, from the embeddings to the logits.

Every stage takes an `Enclosure` of its input and returns one of its output (`bounds.enclosure`
has the statement that is proved, and the symbols). No constant is fitted: each is a count of
roundings, a Lipschitz constant, or the declared accuracy of exp, tanh and erf. The values serve
only to size the radii; the expected results come from an oracle.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int

from attnspec.conformance.models.bounds.activation import activation
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    enclose,
    euclidean,
    inner,
    matmul,
    merge_heads,
)
from attnspec.spec import GPT2Config

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Normalized:
    """The parts of a LayerNorm: (x − mean)/s, s = √(variance + ε), and the affine result."""

    unit: Enclosure
    deviation: Enclosure
    result: Enclosure


def layer_norm(
    x: Enclosure,
    gain: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    arithmetic: Arithmetic,
) -> Normalized:
    """Enclose LayerNorm over the last axis, of length n.

    Let d = x − mean(x), s = √(mean(d²) + ε), y = d/s.

    *Carried*, from an input that moves by δ with |δ| ≤ r and ‖δ‖ ≤ ν: d moves by c = δ − mean(δ),
    and ‖c‖ ≤ ν since centring is a projection. s is the norm of (d/√n, √ε), so it moves by
    μ = ν/√n at most and stays above s − μ. By element, d′/s′ − d/s =
    c/s′ − y(s′ − s)/s′ is at most (r + mean(r) + |y|μ)/(s − μ). By norm, the Jacobian of d ↦ d/s is
    (1 − yyᵀ/n)/s, of spectral norm 1/s at most: ν/(s − μ).

    *Fresh*: the mean errs by γₙ₊₂ rms(|x| ⊕ r) at most, and the subtraction, done before or after
    the division, by γ₄(|x| ⊕ r): together ρ, which moves d as δ does, though not centred. A further
    relative γₙ₊₈ covers the sum of squares (half of it, under the root), root and division.
    The variance may be computed by two passes or by Welford's recurrence, whose relative error
    n·u·rms(x)/s the norm of ρ contains; not as the mean of squares less the square of the mean.

    Returns:
        The three parts; a row whose spread is below its error has useless radii.

    Source:
        Chan and Lewis 1979, on Welford's recurrence
    """
    n = x.value.shape[-1]
    centred = x.value - x.value.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    unit = centred / deviation
    mean_error = arithmetic.gamma(n + 2) * euclidean(x.magnitude) / math.sqrt(n)
    rho = mean_error + arithmetic.gamma(4) * x.magnitude + arithmetic.floor
    slack = x.slack + euclidean(rho)
    moved = slack / math.sqrt(n)
    lowest = deviation - moved
    carried = x.radius + x.radius.mean(-1, keepdim=True) + rho + unit.abs() * moved
    gamma = arithmetic.gamma(n + 8)
    radius = torch.where(lowest > 0, carried / lowest, math.inf)
    norm = torch.where(lowest > 0, slack / lowest, math.inf)
    enclosed_unit = Enclosure(
        unit,
        radius + gamma * (unit.abs() + radius),
        norm + gamma * (euclidean(unit) + norm),
    )
    gain, bias = gain.double(), bias.double()
    # with a gain of zero the result is the bias for any row
    size = torch.where(gain == 0, 0.0, enclosed_unit.magnitude) * gain.abs() + bias.abs()
    return Normalized(
        unit=enclosed_unit,
        deviation=Enclosure(deviation, moved + gamma * (deviation + moved)),
        result=enclose(
            unit * gain + bias,
            enclosed_unit.radius * gain.abs(),
            enclosed_unit.slack * gain.abs().amax(),
            arithmetic.gamma(2) * size + arithmetic.floor,
        ),
    )


def linear(
    x: Enclosure, weight: torch.Tensor, bias: torch.Tensor, arithmetic: Arithmetic
) -> Enclosure:
    """Enclose xW + b; the bias is one more term of each product."""
    product = matmul(x, Enclosure.exact(weight), arithmetic, spare=1)
    bias = bias.double()
    fresh = arithmetic.gamma(weight.shape[-2] + 1) * bias.abs().expand(product.value.shape)
    return enclose(product.value + bias, product.radius, product.slack, fresh)


@dataclass(frozen=True, kw_only=True)
class Attended:
    """The parts of an attention: weights p, and the weighted sums of values."""

    weights: Enclosure
    result: Enclosure


def attention(
    query: Enclosure,
    key: Enclosure,
    value: Enclosure,
    visible: Bool[torch.Tensor, "batch 1 queries keys"],
    scale: float,
    arithmetic: Arithmetic,
) -> Attended:
    """Enclose softmax(scale·QKᵀ)V over the keys that a query may read; every row reads one.

    The exponent s − m errs by e = carried + fresh: the product's radius with four spare roundings
    (scale, and its own), and 4u(|s| + |m| ⊕ radii) for the subtraction of any nearby maximum.
    exp errs by h = e^e − 1 + cu relative, its row sum by H = Σ p h, hence p by
    dp = min(1, p(h + H)/(1 − H)). The weights still sum to one up to rounding: a weight loses as
    much as others gain, so only the distance of the values from o = Σ p v matters.
    With g = γ over 2·keys + 16 roundings (any order, tiles, rescaling, division):
    radius = Σ dp|v − o| + Σ (p + dp)r_v + g Σ (p + dp)(|v| ⊕ r_v) + f Σ (|v| ⊕ r_v) + G(|o| ⊕ …),
    G the error of parts of the keys that are merged by a rounded log-sum-exp l, as NUM-3 derives
    it: 6u(|l| ⊕ e + ln(n + 1)) + (4 ln(n + 1) + 2c)u for n keys.
    """
    keys = key.value.shape[-2]
    product = inner(query, key, arithmetic, spare=4)
    scores, error = scale * product.value, abs(scale) * product.radius
    hidden = ~visible
    largest = (scores.abs() + error).masked_fill(hidden, 0.0)
    error = error + 4 * arithmetic.u * (largest + largest.amax(-1, keepdim=True))
    readable = scores.masked_fill(hidden, -math.inf)
    p = readable.softmax(-1)
    log_keys = math.log(keys + 1)
    lse = readable.logsumexp(-1, keepdim=True).abs()
    lse = lse + error.masked_fill(hidden, 0.0).amax(-1, keepdim=True)
    roundings = 6 * (lse + log_keys) + 4 * log_keys + 2 * arithmetic.elementary
    # a row of one key has nothing to merge
    is_merged = visible.sum(-1, keepdim=True) > 1
    merge = torch.where(is_merged, torch.expm1((arithmetic.u * roundings).clamp(max=700)), 0.0)
    h = torch.expm1(error.clamp(max=700)) + arithmetic.elementary * arithmetic.u
    h = h.masked_fill(hidden, 0.0)
    row = (p * h).sum(-1, keepdim=True)
    dp = torch.where(row < 1, p * (h + row) / (1 - row).clamp(min=1e-300), 1.0)
    dp = dp.nan_to_num(1.0).clamp(max=1.0).masked_fill(hidden, 0.0)
    gamma = arithmetic.gamma(2 * keys + 16)
    out = p @ value.value
    moved, moved_norm = _distances(dp, value.value, out)
    norm = moved_norm + (p + dp) @ value.slack
    carried = moved + (p + dp) @ value.radius
    fresh = gamma * ((p + dp) @ value.magnitude) + arithmetic.floor * (
        visible.double() @ value.magnitude
    )
    fresh = fresh + merge * (out.abs() + carried + fresh)
    return Attended(
        weights=Enclosure(p, dp + gamma * (p + dp) + arithmetic.floor * visible),
        result=enclose(out, carried, norm, fresh),
    )


CHUNK = 2**16
"""Numbers of a chunk of differences, which stay in a core's cache while they are summed."""


def _distances(
    weights: Float64[torch.Tensor, "... queries keys"],
    values: Float64[torch.Tensor, "... keys d_value"],
    centres: Float64[torch.Tensor, "... queries d_value"],
) -> tuple[Float64[torch.Tensor, "... queries d_value"], Float64[torch.Tensor, "... queries 1"]]:
    """Return the weighted sums over keys of |v − o|, and of ‖v − o‖."""
    size = max(1, CHUNK * weights.shape[-2] // max(1, weights.numel() * values.shape[-1]))
    sums, norms = [], []
    for w, o in zip(weights.split(size, -2), centres.split(size, -2), strict=True):
        far = (values[..., None, :, :] - o[..., :, None, :]).abs_()
        sums.append((w[..., None, :] @ far)[..., 0, :])
        norms.append(
            (w[..., None, :] @ torch.linalg.vector_norm(far, dim=-1, keepdim=True))[..., 0]
        )
    return torch.cat(sums, -2), torch.cat(norms, -2)


@dataclass(frozen=True, kw_only=True)
class Block:
    """The intermediate results of one block, for the reverse pass."""

    input: Enclosure
    ln_1: Normalized
    query: Enclosure
    key: Enclosure
    value: Enclosure
    attended: Attended
    merged_heads: Enclosure
    after_attention: Enclosure
    ln_2: Normalized
    pre_activation: Enclosure
    activated: Enclosure
    output: Enclosure
    scale: float


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A forward pass: hidden states by Hugging Face's convention, logits, and the blocks."""

    hidden_states: tuple[Enclosure, ...]
    logits: Enclosure
    blocks: tuple[Block, ...]
    final: Normalized


def attention_scale(config: GPT2Config, layer: int) -> float:
    """Return the factor of the products of queries and keys in a layer (from 0)."""
    scale = config.d_head**-0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


def block(
    x: Enclosure,
    weights: Weights,
    config: GPT2Config,
    layer: int,
    visible: Bool[torch.Tensor, "batch 1 queries keys"],
    arithmetic: Arithmetic,
) -> Block:
    """Enclose one block: x + attention(LayerNorm(x)), then that + MLP(LayerNorm(that))."""
    prefix = f"transformer.h.{layer}."

    def norm(name: str, y: Enclosure) -> Normalized:
        gain, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
        return layer_norm(y, gain, bias, config.layer_norm_epsilon, arithmetic)

    def dense(name: str, y: Enclosure) -> Enclosure:
        weight, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
        return linear(y, weight, bias, arithmetic)

    def third_by_heads(third: int, y: Enclosure) -> Enclosure:
        weight, bias = (
            weights[f"{prefix}attn.c_attn.{part}"]
            .unflatten(-1, (3, config.n_head, config.d_head))[..., third, :, :]
            .movedim(-2, 0)
            for part in ("weight", "bias")
        )
        by_head = Enclosure(y.value[:, None], y.radius[:, None], y.slack[:, None])
        return linear(by_head, weight, bias[:, None], arithmetic)

    ln_1 = norm("ln_1", x)
    query, key, value = (third_by_heads(third, ln_1.result) for third in range(3))
    scale = attention_scale(config, layer)
    attended = attention(query, key, value, visible, scale, arithmetic)
    merged_heads = merge_heads(attended.result)
    after_attention = add(x, dense("attn.c_proj", merged_heads), arithmetic)
    ln_2 = norm("ln_2", after_attention)
    pre_activation = dense("mlp.c_fc", ln_2.result)
    activated = activation(pre_activation, config.activation_function, arithmetic)
    output = add(after_attention, dense("mlp.c_proj", activated), arithmetic)
    return Block(
        input=x,
        ln_1=ln_1,
        query=query,
        key=key,
        value=value,
        attended=attended,
        merged_heads=merged_heads,
        after_attention=after_attention,
        ln_2=ln_2,
        pre_activation=pre_activation,
        activated=activated,
        output=output,
        scale=scale,
    )


def head_weight(config: GPT2Config, weights: Weights) -> torch.Tensor:
    """Return the matrix of the head: the token embeddings if it is tied."""
    return weights["transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"]


def visible_keys(attention_mask: Int[torch.Tensor, "batch length"]) -> Bool[torch.Tensor, "..."]:
    """Return the keys of each query: earlier real tokens, and itself even if it is padding."""
    length = attention_mask.shape[-1]
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    visible = earlier & attention_mask.bool()[:, None, None, :]
    return visible | torch.eye(length, dtype=torch.bool)


def forward(
    config: GPT2Config,
    weights: Weights,
    input_ids: Int[torch.Tensor, "batch length"],
    arithmetic: Arithmetic,
    *,
    attention_mask: Int[torch.Tensor, "batch length"] | None = None,
    position_ids: Int[torch.Tensor, "batch length"] | None = None,
) -> Forward:
    """Enclose a forward pass, all tokens at once; a pass with a cache splits the same sums."""
    batch, length = input_ids.shape
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if position_ids is None:
        position_ids = torch.arange(length).expand(batch, length)
    exact = {name: weight.detach().double() for name, weight in weights.items()}
    tokens = Enclosure.exact(exact["transformer.wte.weight"][input_ids])
    positions = Enclosure.exact(exact["transformer.wpe.weight"][position_ids])
    states, blocks = [add(tokens, positions, arithmetic)], list[Block]()
    visible = visible_keys(attention_mask)
    for layer in range(config.n_layer):
        blocks.append(block(states[-1], exact, config, layer, visible, arithmetic))
        states.append(blocks[-1].output)
    final = layer_norm(
        states[-1],
        exact["transformer.ln_f.weight"],
        exact["transformer.ln_f.bias"],
        config.layer_norm_epsilon,
        arithmetic,
    )
    head = Enclosure.exact(head_weight(config, exact)).map(lambda x: x.mT)
    return Forward(
        hidden_states=(*states[:-1], final.result) if blocks else (final.result,),
        logits=matmul(final.result, head, arithmetic),
        blocks=tuple(blocks),
        final=final,
    )


def loss(
    logits: Enclosure, labels: Int[torch.Tensor, "..."], arithmetic: Arithmetic
) -> tuple[Float64[torch.Tensor, ""], Float64[torch.Tensor, ""]]:
    """Enclose the mean of lse(z) − z_label over all rows.

    Carried: lse moves by at most log Σ softmax(z) e^r, the label's logit by r. Fresh: each loss is
    a shifted sum of exponentials, a logarithm, and two subtractions of numbers up to 2 max|z|; the
    mean is a sum of one term per row.
    """
    z, r = logits.value, logits.radius
    index = labels[..., None]
    losses = z.logsumexp(-1) - z.gather(-1, index)[..., 0]
    carried = (z.log_softmax(-1) + r).logsumexp(-1) + r.gather(-1, index)[..., 0]
    largest = logits.magnitude.amax(-1)
    vocab = z.shape[-1]
    fresh = arithmetic.gamma(vocab + 2 * int(arithmetic.elementary) + 8) * (
        1 + math.log(vocab) + 4 * largest
    )
    radius = carried.clamp(min=0) + fresh
    rows = losses.numel()
    total = radius.mean() + arithmetic.gamma(rows + 1) * (losses.abs() + radius).mean()
    return losses.mean(), total
