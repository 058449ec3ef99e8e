"""The worst error of a BERT, element by element, stage by stage, from the data.

The enclosures of sums, linear maps, LayerNorm, activation and attention are those of
`models.bounds`, in the order of an encoder: LayerNorm follows each sum. No constant is fitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.activation import activation
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    merge_heads,
)
from attnspec.conformance.models.bounds.forward import attention, layer_norm, linear
from attnspec.spec.encoder import BertConfig

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The enclosures of one call.

    Attributes:
        states: the embeddings, and the result of each block.
        pooled: the pooled vectors.
        logits: the logits.
    """

    states: tuple[Enclosure, ...]
    pooled: Enclosure
    logits: Enclosure


def forward(
    config: BertConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    arithmetic: Arithmetic,
) -> Forward:
    """Enclose a BERT whose parameters are exact as stored.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids, and mask and token types if there are any.
        arithmetic: the roundings.
    """
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    visible = mask[:, None, None].bool().expand(-1, -1, ids.shape[1], -1)
    x = _embedded(config, weights, inputs, arithmetic)
    states = [x]
    for layer in range(config.num_hidden_layers):
        x = _block(config, weights, f"bert.encoder.layer.{layer}", x, visible, arithmetic)
        states.append(x)
    first = x.map(lambda value: value[:, 0])
    pooled = activation(
        _linear(first, weights, "bert.pooler.dense", arithmetic), "tanh", arithmetic
    )
    head = "cls.predictions"
    x = _linear(x, weights, f"{head}.transform.dense", arithmetic)
    x = activation(x, config.hidden_act, arithmetic)
    x = _norm(config, x, weights, f"{head}.transform.LayerNorm", arithmetic)
    table = weights["bert.embeddings.word_embeddings.weight"]
    logits = linear(x, table.double().mT, weights[f"{head}.bias"], arithmetic)
    return Forward(states=tuple(states), pooled=pooled, logits=logits)


def _embedded(
    config: BertConfig,
    weights: Weights,
    inputs: Mapping[str, torch.Tensor],
    arithmetic: Arithmetic,
) -> Enclosure:
    """Enclose the embeddings; their three rows are added in any order."""
    ids = inputs["input_ids"]
    types = inputs.get("token_type_ids", torch.zeros_like(ids))
    tables = "bert.embeddings"
    rows = (
        weights[f"{tables}.word_embeddings.weight"][ids].double(),
        weights[f"{tables}.position_embeddings.weight"][: ids.shape[1]]
        .double()
        .expand(len(ids), -1, -1),
        weights[f"{tables}.token_type_embeddings.weight"][types].double(),
    )
    size = rows[0].abs() + rows[1].abs() + rows[2].abs()
    total = Enclosure(rows[0] + rows[1] + rows[2], arithmetic.gamma(2) * size)
    return _norm(config, total, weights, f"{tables}.LayerNorm", arithmetic)


def _norm(
    config: BertConfig, x: Enclosure, weights: Weights, name: str, arithmetic: Arithmetic
) -> Enclosure:
    gain, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return layer_norm(x, gain, bias, config.layer_norm_eps, arithmetic).result


def _linear(x: Enclosure, weights: Weights, name: str, arithmetic: Arithmetic) -> Enclosure:
    """Enclose a linear map that is stored output-major."""
    matrix = weights[f"{name}.weight"].double().mT
    return linear(x, matrix, weights[f"{name}.bias"], arithmetic)


def _block(
    config: BertConfig,
    weights: Weights,
    name: str,
    x: Enclosure,
    visible: torch.Tensor,
    arithmetic: Arithmetic,
) -> Enclosure:
    heads = config.num_attention_heads

    def split(part: str) -> Enclosure:
        projected = _linear(x, weights, f"{name}.attention.self.{part}", arithmetic)
        return projected.map(lambda value: value.unflatten(-1, (heads, -1)).transpose(1, 2))

    scale = (config.hidden_size // heads) ** -0.5
    attended = attention(
        split("query"), split("key"), split("value"), visible, scale, arithmetic
    ).result
    branch = _linear(merge_heads(attended), weights, f"{name}.attention.output.dense", arithmetic)
    x = _norm(
        config,
        add(x, branch, arithmetic),
        weights,
        f"{name}.attention.output.LayerNorm",
        arithmetic,
    )
    inner = _linear(x, weights, f"{name}.intermediate.dense", arithmetic)
    inner = activation(inner, config.hidden_act, arithmetic)
    branch = _linear(inner, weights, f"{name}.output.dense", arithmetic)
    total = add(x, branch, arithmetic)
    return _norm(config, total, weights, f"{name}.output.LayerNorm", arithmetic)
