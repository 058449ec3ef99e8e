"""The attention weights of every head of a GPT-2, read through the attention that it calls."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.model import build
from attnspec.spec import GPT2Config


def queries_and_keys(
    config: GPT2Config, weights: Mapping[str, torch.Tensor], ids: Sequence[int]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the queries and keys of one text in each layer, (heads, length, d_head)."""
    layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def recording(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        layers.append((query[0], key[0]))
        return scaled_dot_product_attention(query, key, value, **options)

    with torch.no_grad():
        build(config, weights, attention=recording)(torch.tensor([list(ids)]))
    return layers


def attention_patterns(
    config: GPT2Config, weights: Mapping[str, torch.Tensor], ids: Sequence[int]
) -> torch.Tensor:
    """Return all attention weights of one text, (layers, heads, queries, keys)."""
    patterns = []
    for query, key in queries_and_keys(config, weights, ids):
        # Identity values reveal the weights: ATT-5.
        values = torch.eye(len(ids), dtype=key.dtype).expand(1, len(key), -1, -1)
        patterns.append(
            scaled_dot_product_attention(query[None], key[None], values, is_causal=True)[0]
        )
    return torch.stack(patterns)
