"""Branches of a block in enclosures, forward and in reverse: BERT and the encoder-decoder.

A branch is an attention, whose queries and keys may come from two texts, or a feed-forward network.
The steps are those of `models.bounds`; matrices are stored output-major in the parameters, and
input-major in what the reverse pass reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.activation import activation, activation_slope
from attnspec.conformance.models.bounds.backward import (
    Gradients,
    Terms,
    flat,
    outer,
    reverse_attention,
    reverse_linear,
)
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    concatenate,
    enclose,
    matmul,
    merge_heads,
    multiply,
    total,
)
from attnspec.conformance.models.bounds.forward import Attended, attention, linear

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The parts of an attention, for the reverse pass.

    Attributes:
        maps: names of the maps of queries, keys and values, and of the result.
        rows: the states from which queries are made.
        memory: those from which keys and values are made.
        operands: queries, keys and values by heads.
        scale: of the scores.
        attended: attention weights and result by heads.
        merged: the result of all heads side by side.
        out: after the linear map.
    """

    maps: tuple[str, str, str, str]
    rows: Enclosure
    memory: Enclosure
    operands: tuple[Enclosure, Enclosure, Enclosure]
    scale: float
    attended: Attended
    merged: Enclosure
    out: Enclosure


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The parts of a feed-forward network, for the reverse pass.

    Attributes:
        maps: names of its two maps.
        act: the activation function.
        rows: the states that it reads.
        pre_activation: the result of the first map.
        activated: that of the activation function.
        out: that of the second map.
    """

    maps: tuple[str, str]
    act: str
    rows: Enclosure
    pre_activation: Enclosure
    activated: Enclosure
    out: Enclosure


def linear_map(x: Enclosure, weights: Weights, name: str, arithmetic: Arithmetic) -> Enclosure:
    """Enclose a linear map that is stored output-major."""
    matrix = weights[f"{name}.weight"].double().mT
    return linear(x, matrix, weights[f"{name}.bias"], arithmetic)


def enclose_attention(
    maps: tuple[str, str, str, str],
    weights: Weights,
    rows: Enclosure,
    memory: Enclosure,
    heads: int,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
) -> Attention:
    """Enclose an attention from states to a memory.

    Args:
        maps: names of the maps of queries, keys and values, and of the result.
        weights: the parameters.
        rows: the states from which queries are made.
        memory: those from which keys and values are made.
        heads: divide the channels.
        visible: true if a query may read a key, (batch, 1, 1 or queries, keys).
        arithmetic: the roundings.
    """

    def split(name: str, source: Enclosure) -> Enclosure:
        projected = linear_map(source, weights, name, arithmetic)
        return projected.map(lambda value: value.unflatten(-1, (heads, -1)).transpose(1, 2))

    scale = (rows.value.shape[-1] // heads) ** -0.5
    operands = split(maps[0], rows), split(maps[1], memory), split(maps[2], memory)
    every = visible.expand(-1, -1, rows.value.shape[1], -1)
    attended = attention(*operands, every, scale, arithmetic)
    merged = merge_heads(attended.result)
    return Attention(
        maps=maps,
        rows=rows,
        memory=memory,
        operands=operands,
        scale=scale,
        attended=attended,
        merged=merged,
        out=linear_map(merged, weights, maps[3], arithmetic),
    )


def enclose_feed_forward(
    maps: tuple[str, str], weights: Weights, act: str, rows: Enclosure, arithmetic: Arithmetic
) -> FeedForward:
    """Enclose two linear maps with an activation function between them."""
    inner = linear_map(rows, weights, maps[0], arithmetic)
    activated = activation(inner, act, arithmetic)
    out = linear_map(activated, weights, maps[1], arithmetic)
    return FeedForward(
        maps=maps, act=act, rows=rows, pre_activation=inner, activated=activated, out=out
    )


def reverse_feed_forward(
    grad: Enclosure, parts: FeedForward, exact: Weights, terms: Terms, arithmetic: Arithmetic
) -> Enclosure:
    """Return the gradient of the states that a feed-forward network reads."""
    hidden = reverse_linear(grad, parts.activated, parts.maps[1], exact, terms, arithmetic)
    slope = activation_slope(parts.pre_activation, parts.act, arithmetic)
    hidden = multiply(hidden, slope, arithmetic)
    return reverse_linear(hidden, parts.rows, parts.maps[0], exact, terms, arithmetic)


def reverse_to_projections(
    grad: Enclosure, parts: Attention, exact: Weights, terms: Terms, arithmetic: Arithmetic
) -> list[tuple[str, Enclosure]]:
    """Return the gradients of queries, keys and values, heads side by side, by their maps."""
    merged = reverse_linear(grad, parts.merged, parts.maps[3], exact, terms, arithmetic)
    count = parts.operands[0].value.shape[-3]
    heads = merged.map(lambda x: x.unflatten(-1, (count, -1)).transpose(-3, -2))
    thirds = reverse_attention(heads, parts.operands, parts.attended, parts.scale, arithmetic)
    projections = list(zip(parts.maps, map(merge_heads, thirds), strict=False))
    for source, (name, third) in zip(
        (parts.rows, parts.memory, parts.memory), projections, strict=True
    ):
        terms[f"{name}.weight"].append(outer(source, third, arithmetic))
        terms[f"{name}.bias"].append(total(flat(third), arithmetic, 0))
    return projections


def reverse_maps(
    projections: Sequence[tuple[str, Enclosure]],
    exact: Weights,
    arithmetic: Arithmetic,
    rest: Enclosure | None = None,
) -> Enclosure:
    """Return the gradient of states that several maps read, and the rest of their gradient.

    The gradients of k maps are one sum of products, that of their matrices side by side, and their
    sum with the rest may have any order: a product, or the rest, has k more roundings at most.

    Args:
        projections: gradients of the results of the maps, by their names.
        exact: the parameters, with matrices stored input-major.
        arithmetic: the roundings.
        rest: the gradient of other uses of the states.
    """
    matrices = torch.cat([exact[f"{name}.weight"] for name, _ in projections], dim=-1)
    joined = concatenate([grad for _, grad in projections])
    count = len(projections)
    result = matmul(joined, Enclosure.exact(matrices.mT), arithmetic, spare=count)
    if rest is None:
        return result
    fresh = arithmetic.gamma(count) * rest.magnitude
    return add(enclose(rest.value, rest.radius, rest.slack, fresh), result, arithmetic)


def sum_in_any_order(terms: Sequence[Enclosure], arithmetic: Arithmetic) -> Enclosure:
    """Enclose a sum of k terms in any order: fresh γₖ₋₁ Σ(|x| ⊕ r)."""
    magnitude = torch.stack([each.magnitude for each in terms]).sum(0)
    count = len(terms) - 1
    return enclose(
        torch.stack([each.value for each in terms]).sum(0),
        torch.stack([each.radius for each in terms]).sum(0),
        torch.stack([each.slack for each in terms]).sum(0),
        arithmetic.gamma(count) * magnitude + count * arithmetic.floor,
    )


def input_major(weights: Weights, is_map: Callable[[str, torch.Tensor], bool]) -> Weights:
    """Return the parameters in float64, with the matrices of linear maps stored input-major."""
    return {
        name: each.double().mT if is_map(name, each) else each.double()
        for name, each in weights.items()
    }


def gradients_of_terms(
    terms: Terms, is_map: Callable[[str, torch.Tensor], bool], arithmetic: Arithmetic
) -> Gradients:
    """Return the gradient of each parameter, with matrices of linear maps stored output-major."""
    found = {name: sum_in_any_order(each, arithmetic) for name, each in terms.items()}
    return {
        name: each.map(lambda x: x.mT) if is_map(name, each.value) else each
        for name, each in found.items()
    }
