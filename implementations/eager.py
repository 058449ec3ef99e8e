"""Attention as a textbook writes it: two matrix products and a softmax, in the storage type."""

from typing import cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.arguments import check
from attnspec.spec import (
    Attention,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Mix values by how well each query matches the keys that it may read.

    Args:
        query: floating point, like key and value.
        key: as many heads as `query`, or with `enable_gqa` a divisor of them.
        value: one row per key.
        attn_mask: bool, true where a query may read a key, or added to the scaled scores.
        dropout_p: the probability of dropping a weight.
        is_causal: a query may read the keys that do not follow it; with a mask both apply.
        scale: multiplies the scores; ``d_head ** -0.5`` where not given.
        enable_gqa: let runs of query heads share a key/value head.

    Raises:
        ValueError: for shapes that do not fit together, naming them.
    """
    check(query, key, value, attn_mask, enable_gqa=enable_gqa)
    if scale is None:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)

    # SCORES
    scores = (scale * query) @ key.mT
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
    if is_causal:
        visible = visible.tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        scores = (scores + attn_mask).to(query.dtype)
        visible = visible & (attn_mask != -torch.inf)

    # WEIGHTS
    # By what may be read and not by what came out: a NaN that may be read has to stay one.
    empty = ~visible.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0)
    weights = scores.softmax(dim=-1).masked_fill(empty, 0.0)

    # CONTEXT
    return torch.nn.functional.dropout(weights, dropout_p) @ value


IMPLEMENTATION = Implementation(
    name="eager",
    attention=cast(Attention, attention),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.DROPOUT, Feature.BACKWARD}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    profile=Profile(
        # 0 · NaN: a weight of zero does not keep out what stands in a value.
        masked_nonfinite=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
)
