"""The worst error of a BERT's gradients, element by element: the reverse pass in enclosures.

Each step is that of `models.bounds.backward`, in the order of an encoder. The cotangent of the
logits is exact.
"""

from collections import defaultdict
from collections.abc import Mapping

import torch
from jaxtyping import Float

from attnspec.conformance.models.bounds.activation import activation_slope
from attnspec.conformance.models.bounds.backward import (
    Gradients,
    Terms,
    flat,
    outer,
    reverse_attention,
    reverse_layer_norm,
    reverse_linear,
    scatter,
    sum_terms,
)
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    concatenate,
    matmul,
    merge_heads,
    multiply,
    total,
)
from attnspec.conformance.operators.bert.bounds import Block, Forward
from attnspec.spec.encoder import BertConfig

_PARTS = ("query", "key", "value")
_TABLES = "bert.embeddings"
_HEAD = "cls.predictions"


def gradients(
    config: BertConfig,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    enclosed: Forward,
    cotangent: Float[torch.Tensor, "batch length vocab"],
    arithmetic: Arithmetic,
) -> Gradients:
    """Enclose d(Σ cotangent·logits)/d(parameter) of every parameter but the pooler's.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids, and mask and token types if there are any.
        enclosed: the forward pass.
        cotangent: of the logits; zero at positions of padding.
        arithmetic: the roundings.
    """
    # the steps expect matrices stored input-major
    exact = {
        name: each.double().mT if _is_map(name, each) else each.double()
        for name, each in weights.items()
    }
    terms: Terms = defaultdict(list)
    table = f"{_TABLES}.word_embeddings.weight"
    grad = Enclosure.exact(cotangent)
    terms[table].append(outer(grad, enclosed.normed.result, arithmetic))
    terms[f"{_HEAD}.bias"].append(total(flat(grad), arithmetic, 0))
    grad = matmul(grad, Enclosure.exact(exact[table]), arithmetic)
    name = f"{_HEAD}.transform"
    grad = reverse_layer_norm(grad, enclosed.normed, f"{name}.LayerNorm", exact, terms, arithmetic)
    slope = activation_slope(enclosed.transformed, config.hidden_act, arithmetic)
    grad = multiply(grad, slope, arithmetic)
    grad = reverse_linear(grad, enclosed.states[-1], f"{name}.dense", exact, terms, arithmetic)
    for layer in reversed(range(config.num_hidden_layers)):
        name = f"bert.encoder.layer.{layer}"
        grad = _block(grad, enclosed.blocks[layer], name, config, exact, terms, arithmetic)
    name = f"{_TABLES}.LayerNorm"
    grad = reverse_layer_norm(grad, enclosed.embedded, name, exact, terms, arithmetic)
    ids = inputs["input_ids"]
    rows = {
        "word": ids,
        "position": torch.arange(ids.shape[1]).expand(ids.shape),
        "token_type": inputs.get("token_type_ids", torch.zeros_like(ids)),
    }
    for kind, chosen in rows.items():
        name = f"{_TABLES}.{kind}_embeddings.weight"
        terms[name].append(scatter(grad, chosen, len(exact[name]), arithmetic))
    found = {name: sum_terms(of_name, arithmetic) for name, of_name in terms.items()}
    return {
        name: each.map(lambda x: x.mT) if _is_map(name, each.value) else each
        for name, each in found.items()
    }


def _is_map(name: str, value: torch.Tensor) -> bool:
    """Return whether a parameter is the matrix of a linear map, and no table."""
    return value.dim() == 2 and "embeddings" not in name


def _block(
    grad: Enclosure,
    block: Block,
    name: str,
    config: BertConfig,
    exact: Mapping[str, torch.Tensor],
    terms: Terms,
    arithmetic: Arithmetic,
) -> Enclosure:
    """Back-propagate through one block: through each LayerNorm to its sum, and to its branch.

    Queries, keys and values are three linear maps of the same rows, whose gradients are one sum
    of products, in any order: that of their matrices side by side.
    """
    norm = f"{name}.output.LayerNorm"
    grad = reverse_layer_norm(grad, block.second, norm, exact, terms, arithmetic)
    inner = block.feed_forward
    hidden = reverse_linear(grad, inner.activated, f"{name}.output.dense", exact, terms, arithmetic)
    slope = activation_slope(inner.pre_activation, config.hidden_act, arithmetic)
    hidden = multiply(hidden, slope, arithmetic)
    dense = f"{name}.intermediate.dense"
    grad = add(
        grad, reverse_linear(hidden, inner.rows, dense, exact, terms, arithmetic), arithmetic
    )
    norm = f"{name}.attention.output.LayerNorm"
    grad = reverse_layer_norm(grad, block.first, norm, exact, terms, arithmetic)
    attended = block.attention
    dense = f"{name}.attention.output.dense"
    merged = reverse_linear(grad, attended.merged, dense, exact, terms, arithmetic)
    heads = merged.map(lambda x: x.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2))
    thirds = [
        merge_heads(third)
        for third in reverse_attention(
            heads, attended.operands, attended.attended, attended.scale, arithmetic
        )
    ]
    names = [f"{name}.attention.self.{part}" for part in _PARTS]
    for part, third in zip(names, thirds, strict=True):
        terms[f"{part}.weight"].append(outer(attended.rows, third, arithmetic))
        terms[f"{part}.bias"].append(total(flat(third), arithmetic, 0))
    matrices = torch.cat([exact[f"{part}.weight"] for part in names], dim=-1)
    branch = matmul(concatenate(thirds), Enclosure.exact(matrices.mT), arithmetic, spare=1)
    return add(grad, branch, arithmetic)
