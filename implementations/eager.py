"""Textbook attention: two matrix products and a softmax, in the storage type."""

from typing import cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.implementations.arguments import check
from attnspec.implementations.cpu_products import SPOILED_ROWS
from attnspec.spec import (
    Attention,
    Extra,
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
    *,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Float[torch.Tensor, " heads"] | None = None,
    alibi_slopes: Float[torch.Tensor, " heads"] | None = None,
    key_lengths: Int[torch.Tensor, " batch"] | None = None,
    query_offset: Int[torch.Tensor, " batch"] | None = None,
    return_lse: bool = False,
) -> (
    Float[torch.Tensor, "batch heads queries d_value"]
    | tuple[
        Float[torch.Tensor, "batch heads queries d_value"],
        Float[torch.Tensor, "batch heads queries"],
    ]
):
    """Return a mean of values for each query, weighted by a softmax of its scores.

    Args:
        query: floating point, like key and value.
        key: as many heads as `query`, or with `enable_gqa` a divisor of them.
        value: one row per key.
        attn_mask: bool, true if a query may read a key, or added to the scaled scores.
        dropout_p: the probability of dropping a weight.
        is_causal: a query may read the keys that do not follow it; with a mask both apply.
        scale: multiplies the scores; ``d_head ** -0.5`` by default.
        enable_gqa: let groups of query heads share a key/value head.
        window: the number of keys before and after its own position that a query may read; None is
            unbounded.
        softcap: bounds the scaled scores; positive, or None.
        sinks: one more logit per head, which takes weight and has no value.
        alibi_slopes: per head, the loss of a score for each place between query and key.
        key_lengths: per batch element, how many of its keys it has, from the first on.
        query_offset: per batch element, how many places its first query is after the first key.
        return_lse: return the logarithm of the sum of exponentials too, never in 16 bit.

    Raises:
        ValueError: if shapes do not fit together, or an option has no meaning; names them.
    """
    check(query, key, value, attn_mask, enable_gqa=enable_gqa)
    check_options(query, window=window, softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes)
    check_lengths(key, key_lengths=key_lengths, query_offset=query_offset)
    if scale is None:
        scale = query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)

    # SCORES
    scores = (scale * query) @ key.mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(scores.shape[-2], device=query.device)[:, None]
    position = torch.arange(scores.shape[-1], device=query.device)
    distance = position - place
    if query_offset is not None:
        distance = distance - _per_element(query_offset)
    if alibi_slopes is not None:
        scores = scores - _per_head(alibi_slopes, scores) * distance.abs().to(scores.dtype)
    visible = torch.ones_like(distance, dtype=torch.bool)
    if is_causal:
        visible = visible & (distance <= 0)
    if window is not None:
        left, right = window
        visible = visible if left is None else visible & (distance >= -left)
        visible = visible if right is None else visible & (distance <= right)
    if key_lengths is not None:
        visible = visible & (position < _per_element(key_lengths))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        scores = (scores + attn_mask).to(query.dtype)
        visible = visible & (attn_mask != -torch.inf)

    # WEIGHTS
    if sinks is not None:
        logits = _per_head(sinks, scores).expand(*scores.shape[:3], 1)
        # a sink of minus infinity is no sink: a row without a visible key is empty
        visible = torch.cat([visible.expand(scores.shape), logits != -torch.inf], dim=-1)
        scores = torch.cat([scores, logits], dim=-1)
    empty = ~visible.any(dim=-1, keepdim=True)
    # A softmax of nothing but minus infinity is NaN, so an empty row has scores of zero for it.
    # Mask by visibility, not by the resulting weights: NaN at a visible key must stay NaN.
    scores = torch.where(visible, scores, torch.where(empty, 0.0, -torch.inf).to(scores.dtype))
    weights = torch.where(empty, 0.0, scores.softmax(dim=-1))[..., : key.shape[2]]

    # CONTEXT
    out = torch.nn.functional.dropout(weights, dropout_p) @ value
    if not return_lse:
        return out
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return out, torch.where(empty[..., 0], -torch.inf, scores.to(wide).logsumexp(dim=-1))


def check_options(
    query: torch.Tensor,
    *,
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
) -> None:
    """Refuse options without a meaning.

    Raises:
        ValueError: if an option has none; names it.
    """
    if window is not None and any(side is not None and side < 0 for side in window):
        raise ValueError(f"window must not be negative, got {window}")
    if softcap is not None and not 0 < softcap < float("inf"):
        raise ValueError(f"softcap must be positive and finite, got {softcap}")
    for name, numbers in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        if numbers is not None and tuple(numbers.shape) != (query.shape[1],):
            shape = tuple(numbers.shape)
            raise ValueError(f"{name} must have one number per head, got shape {shape}")


def check_lengths(
    key: torch.Tensor,
    *,
    key_lengths: torch.Tensor | None,
    query_offset: torch.Tensor | None,
) -> None:
    """Refuse numbers of keys that the tensors do not hold, and places before the first key.

    Raises:
        ValueError: if there are any; names them.
    """
    for name, numbers, most in (
        ("key_lengths", key_lengths, key.shape[2]),
        ("query_offset", query_offset, torch.iinfo(torch.int32).max),
    ):
        if numbers is None:
            continue
        if tuple(numbers.shape) != (key.shape[0],):
            shape = tuple(numbers.shape)
            raise ValueError(f"{name} must have one number per batch element, got shape {shape}")
        if not torch.compiler.is_compiling() and ((numbers < 0) | (numbers > most)).any():
            raise ValueError(f"{name} must lie from 0 to {most}, got {numbers.tolist()}")


def _per_element(numbers: Int[torch.Tensor, " batch"]) -> Int[torch.Tensor, "batch 1 1 1"]:
    """Return one number per batch element in a shape that broadcasts to the scores."""
    return numbers[:, None, None, None]


def _per_head(
    numbers: Float[torch.Tensor, " heads"], scores: torch.Tensor
) -> Float[torch.Tensor, "1 heads 1 1"]:
    """Return one number per head in the type of the scores, in a shape that broadcasts to them."""
    return numbers.to(scores.dtype)[None, :, None, None]


IMPLEMENTATION = Implementation(
    name="eager",
    attention=cast(Attention, attention),
    features=frozenset(Feature),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    extras=frozenset({Extra.COMPILE, Extra.VMAP}),
    profile=Profile(
        # 0 · NaN is NaN: a weight of zero does not block NaN in a value.
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    deviations=SPOILED_ROWS,
)
