"""The worst error of a BERT, element by element, stage by stage, from the data.

The enclosures of sums, linear maps, LayerNorm, activation and attention are those of
`models.bounds`, in the order of an encoder: LayerNorm follows each sum. No constant is fitted.

Each block begins with states whose radius an affine form has sharpened (`operators.affine`), so
that in float32 the bound of six blocks stays far below the logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from attnspec.conformance.models.bounds.activation import activation
from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, add
from attnspec.conformance.models.bounds.forward import Normalized, layer_norm, linear
from attnspec.conformance.operators.affine import (
    Form,
    activate_form,
    add_forms,
    attention_form,
    feed_forward_form,
    linear_form,
    map_form,
    normalize_form,
    start,
)
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
    form = start(embedded.result)
    for layer in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}"
        block, form = _block(config, weights, name, states[-1], form, visible, arithmetic)
        blocks.append(block)
        states.append(block.second.result)
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
    name = f"{head}.transform.LayerNorm"
    normed = _norm(config, activated, weights, name, arithmetic)
    form = linear_form(form, weights, f"{head}.transform.dense", arithmetic)
    form = activate_form(form, config.hidden_act, arithmetic)
    form = _norm_form(config, form, weights, name, arithmetic)
    normed = replace(normed, result=form.enclosure(normed.result))
    table = weights["bert.embeddings.word_embeddings.weight"].double().mT
    bias = weights[f"{head}.bias"]
    logits = linear(normed.result, table, bias, arithmetic)
    logits = map_form(form, table, bias, arithmetic).enclosure(logits)
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
        return _block(config, weights, name, x, start(x), visible, arithmetic)[0].second.result
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


def _norm_form(
    config: BertConfig, x: Form, weights: Weights, name: str, arithmetic: Arithmetic
) -> Form:
    gain, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return normalize_form(x, gain, bias, config.layer_norm_eps, arithmetic)


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
    form: Form,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
) -> tuple[Block, Form]:
    """Enclose a block by steps and by an affine form, whose radii sharpen each other."""
    attended = _attention(config, weights, name, x, visible, arithmetic)
    total = add(x, attended.out, arithmetic)
    norm = f"{name}.attention.output.LayerNorm"
    first = _norm(config, total, weights, norm, arithmetic)
    branch = attention_form(
        attended.maps,
        weights,
        form,
        form,
        config.num_attention_heads,
        visible,
        arithmetic,
    )
    form = _norm_form(config, add_forms(form, branch, arithmetic), weights, norm, arithmetic)
    first = replace(first, result=form.enclosure(first.result))
    form = form.settle()
    inner = _feed_forward(config, weights, name, first.result, arithmetic)
    total = add(first.result, inner.out, arithmetic)
    norm = f"{name}.output.LayerNorm"
    second = _norm(config, total, weights, norm, arithmetic)
    branch = feed_forward_form(inner.maps, weights, config.hidden_act, form, arithmetic)
    form = _norm_form(config, add_forms(form, branch, arithmetic), weights, norm, arithmetic)
    second = replace(second, result=form.enclosure(second.result))
    block = Block(attention=attended, first=first, feed_forward=inner, second=second)
    return block, form.settle()
