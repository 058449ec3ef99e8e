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
    reverse_layer_norm,
    reverse_linear,
    scatter,
)
from attnspec.conformance.models.bounds.enclosure import (
    Arithmetic,
    Enclosure,
    add,
    matmul,
    multiply,
    total,
)
from attnspec.conformance.operators.bert.bounds import Block, Forward
from attnspec.conformance.operators.branches import (
    gradients_of_terms,
    input_major,
    reverse_feed_forward,
    reverse_maps,
    reverse_to_projections,
)
from attnspec.reference.padding import token_positions
from attnspec.spec.encoder import BertConfig, BertProfile

_TABLES = "bert.embeddings"
_HEAD = "cls.predictions"


def gradients(
    config: BertConfig,
    weights: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    profile: BertProfile,
    enclosed: Forward,
    cotangent: Float[torch.Tensor, "batch length vocab"],
    arithmetic: Arithmetic,
) -> Gradients:
    """Enclose d(Σ cotangent·logits)/d(parameter) of every parameter but the pooler's.

    Args:
        config: the sizes.
        weights: the parameters.
        inputs: ids, and mask and token types if there are any.
        profile: the behaviour with padding before a token.
        enclosed: the forward pass.
        cotangent: of the logits; zero at positions of padding.
        arithmetic: the roundings.
    """
    exact = input_major(weights, _is_map)
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
        grad = _block(grad, enclosed.blocks[layer], name, exact, terms, arithmetic)
    name = f"{_TABLES}.LayerNorm"
    grad = reverse_layer_norm(grad, enclosed.embedded, name, exact, terms, arithmetic)
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    rows = {
        "word": ids,
        "position": token_positions(mask, profile.positions),
        "token_type": inputs.get("token_type_ids", torch.zeros_like(ids)),
    }
    for kind, chosen in rows.items():
        name = f"{_TABLES}.{kind}_embeddings.weight"
        terms[name].append(scatter(grad, chosen, len(exact[name]), arithmetic))
    return gradients_of_terms(terms, _is_map, arithmetic)


def _is_map(name: str, value: torch.Tensor) -> bool:
    """Return whether a parameter is the matrix of a linear map, and no table."""
    return value.dim() == 2 and "embeddings" not in name


def _block(
    grad: Enclosure,
    block: Block,
    name: str,
    exact: Mapping[str, torch.Tensor],
    terms: Terms,
    arithmetic: Arithmetic,
) -> Enclosure:
    """Back-propagate through one block: through each LayerNorm to its sum, and to its branch."""
    norm = f"{name}.output.LayerNorm"
    grad = reverse_layer_norm(grad, block.second, norm, exact, terms, arithmetic)
    branch = reverse_feed_forward(grad, block.feed_forward, exact, terms, arithmetic)
    grad = add(grad, branch, arithmetic)
    norm = f"{name}.attention.output.LayerNorm"
    grad = reverse_layer_norm(grad, block.first, norm, exact, terms, arithmetic)
    projections = reverse_to_projections(grad, block.attention, exact, terms, arithmetic)
    return reverse_maps(projections, exact, arithmetic, rest=grad)
