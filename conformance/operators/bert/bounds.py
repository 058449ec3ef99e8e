"""The worst error of a BERT, element by element, stage by stage, from the data.

The enclosures of sums, linear maps, LayerNorm, activation and attention are those of
`models.bounds`, in the order of an encoder: LayerNorm follows each sum. No constant is fitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.activation import activation
from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, add
from attnspec.conformance.models.bounds.forward import Normalized, layer_norm, linear
from attnspec.conformance.operators.branches import (
    Attention,
    FeedForward,
    Weights,
    enclose_attention,
    enclose_feed_forward,
    linear_map,
)
from attnspec.reference.padding import token_positions
from attnspec.spec.encoder import BertConfig, BertProfile, Pooled


@dataclass(frozen=True, kw_only=True)
class Block:
    """The parts of a block with LayerNorm after each sum, for the reverse pass."""

    attention: Attention
    first: Normalized
    feed_forward: FeedForward
    second: Normalized


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The enclosures of one call.

    Attributes:
        embedded: the embeddings.
        blocks: the parts of each block.
        states: the embeddings, and the result of each block.
        pooled: the pooled vectors.
        transformed: the result of the head's linear map.
        activated: that of its activation function.
        normed: that of its LayerNorm.
        logits: the logits.
    """

    embedded: Normalized
    blocks: tuple[Block, ...]
    states: tuple[Enclosure, ...]
    pooled: Enclosure
    transformed: Enclosure
    activated: Enclosure
    normed: Normalized
    logits: Enclosure


def forward(
    config: BertConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    profile: BertProfile,
    arithmetic: Arithmetic,
) -> Forward:
    """Enclose a BERT whose parameters are exact as stored.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids, and mask and token types if there are any.
        profile: the behaviour with padding before a token.
        arithmetic: the roundings.
    """
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    visible = mask[:, None, None].bool()
    places = token_positions(mask, profile.positions)
    embedded = _embedded(config, weights, inputs, places, arithmetic)
    states, blocks = [embedded.result], list[Block]()
    for layer in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}"
        blocks.append(_block(config, weights, name, states[-1], visible, arithmetic))
        states.append(blocks[-1].second.result)
    slots = torch.zeros(len(ids), dtype=torch.long)
    if profile.pooler is Pooled.FIRST_REAL_TOKEN:
        slots = mask.bool().long().argmax(dim=1)
    first = states[-1].map(lambda value: value[torch.arange(len(ids)), slots])
    pooled = activation(
        linear_map(first, weights, "bert.pooler.dense", arithmetic), "tanh", arithmetic
    )
    head = "cls.predictions"
    transformed = linear_map(states[-1], weights, f"{head}.transform.dense", arithmetic)
    activated = activation(transformed, config.hidden_act, arithmetic)
    normed = _norm(config, activated, weights, f"{head}.transform.LayerNorm", arithmetic)
    table = weights["bert.embeddings.word_embeddings.weight"]
    logits = linear(normed.result, table.double().mT, weights[f"{head}.bias"], arithmetic)
    return Forward(
        embedded=embedded,
        blocks=tuple(blocks),
        states=tuple(states),
        pooled=pooled,
        transformed=transformed,
        activated=activated,
        normed=normed,
        logits=logits,
    )


def block_result(
    config: BertConfig,
    weights: Weights,
    name: str,
    x: Enclosure,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
    *,
    norm_first: bool,
) -> Enclosure:
    """Enclose the result of a block, with LayerNorm after each sum or before each branch.

    Args:
        config: the sizes.
        weights: the parameters.
        name: of the block.
        x: the states.
        visible: true for real tokens, (batch, 1, 1, length).
        arithmetic: the roundings.
        norm_first: whether LayerNorm precedes each branch; not in BERT.
    """
    if not norm_first:
        return _block(config, weights, name, x, visible, arithmetic).second.result
    first = _norm(config, x, weights, f"{name}.attention.output.LayerNorm", arithmetic).result
    x = add(x, _attention(config, weights, name, first, visible, arithmetic).out, arithmetic)
    second = _norm(config, x, weights, f"{name}.output.LayerNorm", arithmetic).result
    return add(x, _feed_forward(config, weights, name, second, arithmetic).out, arithmetic)


def _embedded(
    config: BertConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    places: torch.Tensor,
    arithmetic: Arithmetic,
) -> Normalized:
    """Enclose the embeddings; their three rows are added in any order."""
    ids = inputs["input_ids"]
    types = inputs.get("token_type_ids", torch.zeros_like(ids))
    tables = "bert.embeddings"
    rows = (
        weights[f"{tables}.word_embeddings.weight"][ids].double(),
        weights[f"{tables}.position_embeddings.weight"][places].double(),
        weights[f"{tables}.token_type_embeddings.weight"][types].double(),
    )
    size = rows[0].abs() + rows[1].abs() + rows[2].abs()
    total = Enclosure(rows[0] + rows[1] + rows[2], arithmetic.gamma(2) * size)
    return _norm(config, total, weights, f"{tables}.LayerNorm", arithmetic)


def _norm(
    config: BertConfig, x: Enclosure, weights: Weights, name: str, arithmetic: Arithmetic
) -> Normalized:
    gain, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return layer_norm(x, gain, bias, config.layer_norm_eps, arithmetic)


def _attention(
    config: BertConfig,
    weights: Weights,
    name: str,
    x: Enclosure,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
) -> Attention:
    own = f"{name}.attention"
    maps = (f"{own}.self.query", f"{own}.self.key", f"{own}.self.value", f"{own}.output.dense")
    heads = config.num_attention_heads
    return enclose_attention(maps, weights, x, x, heads, visible, arithmetic)


def _feed_forward(
    config: BertConfig, weights: Weights, name: str, x: Enclosure, arithmetic: Arithmetic
) -> FeedForward:
    maps = f"{name}.intermediate.dense", f"{name}.output.dense"
    return enclose_feed_forward(maps, weights, config.hidden_act, x, arithmetic)


def _block(
    config: BertConfig,
    weights: Weights,
    name: str,
    x: Enclosure,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
) -> Block:
    attended = _attention(config, weights, name, x, visible, arithmetic)
    total = add(x, attended.out, arithmetic)
    first = _norm(config, total, weights, f"{name}.attention.output.LayerNorm", arithmetic)
    inner = _feed_forward(config, weights, name, first.result, arithmetic)
    total = add(first.result, inner.out, arithmetic)
    second = _norm(config, total, weights, f"{name}.output.LayerNorm", arithmetic)
    return Block(attention=attended, first=first, feed_forward=inner, second=second)
