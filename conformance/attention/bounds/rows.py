"""Rows: some queries of a call with the keys and values that they read, in float64, by head."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int

from attnspec.conformance.attention.bounds.roundoff import working_dtype
from attnspec.conformance.attention.call import Call
from attnspec.spec import (
    CausalAlignment,
    EmptyRow,
    Grouping,
    MaskKind,
    Profile,
    SoftcapOrder,
)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some rows of one call. Keys and values are repeated for each head that reads them.

    Attributes:
        query: the queries of these rows.
        key: all keys.
        value: all values.
        visible: true if a row may read a key; (batch, heads) may be 1.
        by_position: true if causal flag, window and number of keys let a row read a key.
        by_mask: true if the mask does; None without one.
        mask_kind: the kind of the mask; None without one.
        mask_bias: the float mask, 0 where it hides; None without one.
        alibi: minus slope times distance; None without slopes.
        scale: multiplies the scores.
        softcap: bounds the scores.
        sinks: one more logit per head.
        mask_rounded_to: the dtype to which the float mask may be rounded: the query's, or the one
            to which that is rounded; None if it holds every number of the mask's dtype.
        sinks_are_wider: whether sinks must be rounded to be stored in the query's dtype.
        softcap_order: the order of softcap and bias.
    """

    query: Float64[torch.Tensor, "batch heads rows d_head"]
    key: Float64[torch.Tensor, "batch heads keys d_head"]
    value: Float64[torch.Tensor, "batch heads keys d_value"]
    visible: Bool[torch.Tensor, "#batch #heads rows keys"]
    by_position: Bool[torch.Tensor, "#batch 1 rows keys"]
    by_mask: Bool[torch.Tensor, "#batch #heads #rows #keys"] | None
    mask_kind: MaskKind | None
    mask_bias: Float64[torch.Tensor, "#batch #heads #rows #keys"] | None
    alibi: Float64[torch.Tensor, "#batch heads rows keys"] | None
    scale: float
    softcap: float | None
    sinks: Float64[torch.Tensor, " heads"] | None
    mask_rounded_to: torch.dtype | None = None
    sinks_are_wider: bool = False
    softcap_order: SoftcapOrder = SoftcapOrder.BEFORE_BIAS

    @property
    def bias(self) -> Float64[torch.Tensor, "#batch #heads #rows #keys"] | None:
        """The sum of float mask and ALiBi bias, which is added to the scores."""
        if self.mask_bias is None or self.alibi is None:
            return self.alibi if self.mask_bias is None else self.mask_bias
        return self.mask_bias + self.alibi

    @property
    def caps_bias(self) -> bool:
        """True if a softcap bounds the scores after the bias is added."""
        return self.softcap is not None and self.softcap_order == SoftcapOrder.AFTER_BIAS


def group_of_heads(
    heads: int, kv_heads: int, grouping: Grouping, device: torch.device | str = "cpu"
) -> Int[torch.Tensor, " heads"]:
    """Return the key/value head that each query head reads."""
    head = torch.arange(heads, device=device)
    return head % kv_heads if grouping == Grouping.INTERLEAVED else head // (heads // kv_heads)


def per_head(tensor: torch.Tensor, heads: int, grouping: Grouping) -> torch.Tensor:
    """Repeat each key/value head for the query heads of its group."""
    return tensor[:, group_of_heads(heads, tensor.shape[1], grouping, tensor.device)]


def _wide_per_head(tensor: torch.Tensor, heads: int, grouping: Grouping) -> torch.Tensor:
    """Return a copy in float64, with each key/value head repeated for its group."""
    if tensor.shape[1] == heads:
        return tensor.to(torch.float64, copy=True)
    return per_head(tensor.double(), heads, grouping)


def in_groups(x: torch.Tensor, kv_heads: int, grouping: Grouping) -> torch.Tensor:
    """Split the axis of query heads into (kv_heads, heads of a group)."""
    interleaved = grouping == Grouping.INTERLEAVED
    split: torch.Tensor = x.unflatten(1, (-1, kv_heads) if interleaved else (kv_heads, -1))
    return split.transpose(1, 2) if interleaved else split


def sum_of_groups(x: torch.Tensor, kv_heads: int, grouping: Grouping) -> torch.Tensor:
    """Add up the query heads that share a key/value head."""
    if x.shape[1] == kv_heads:
        return x
    return in_groups(x, kv_heads, grouping).sum(2)


def _rounds(tensor: torch.Tensor | None, dtype: torch.dtype) -> bool:
    """Return whether a conversion of the tensor to a dtype may round."""
    return tensor is not None and torch.promote_types(tensor.dtype, dtype) != dtype


def first_places(call: Call, profile: Profile) -> Int[torch.Tensor, " #batch"]:
    """Return the place of query 0 among the keys, of each batch element or of all."""
    if call.query_offset is not None:
        return call.query_offset.long()
    queries, keys = call.query.shape[2], call.key.shape[2]
    device = call.query.device
    if profile.causal_alignment != CausalAlignment.LOWER_RIGHT:
        return torch.zeros(1, dtype=torch.long, device=device)
    if call.key_lengths is not None:
        return call.key_lengths.long() - queries
    return torch.tensor([keys - queries], device=device)


def rows_of(call: Call, profile: Profile, rows: Int[torch.Tensor, " rows"]) -> Rows:
    """Return some rows of a call.

    Args:
        call: without dropout.
        profile: declares the meaning of the causal flag, the grouping of heads and the order of
            softcap and bias.
        rows: the queries, in any order.
    """
    heads, queries, d_head = call.query.shape[1:]
    keys = call.key.shape[2]
    rows = rows.to(call.query.device)
    key = torch.arange(keys, device=rows.device)
    after = key - rows[:, None] - first_places(call, profile)[:, None, None, None]
    visible = torch.ones_like(after, dtype=torch.bool)
    if call.key_lengths is not None:
        visible = visible & (key < call.key_lengths[:, None, None, None])
    if call.is_causal and not profile.ignores_causal_flag(queries):
        visible &= after <= 0
    left, right = call.window or (None, None)
    if left is not None:
        visible &= after >= -left
    if right is not None:
        visible &= after <= right
    by_position = visible
    mask_bias, alibi, by_mask, mask_kind = None, None, None, None
    mask = call.attn_mask
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        mask = mask if mask.shape[2] == 1 else mask[:, :, rows]
        if mask.dtype == torch.bool:
            by_mask, mask_kind = mask, MaskKind.BOOL
        else:
            by_mask, mask_kind = mask != -torch.inf, MaskKind.FLOAT
            mask_bias = mask.double().masked_fill(~by_mask, 0.0)
        visible = visible & by_mask
    if call.alibi_slopes is not None:
        alibi = -call.alibi_slopes.double()[None, :, None, None] * after.abs()
    dtype = working_dtype(call.query.dtype, profile)
    scale = call.scale
    if scale is None:
        scale = 1 / math.sqrt(d_head) if d_head else 1.0
    return Rows(
        query=call.query[:, :, rows].double(),
        key=_wide_per_head(call.key, heads, profile.grouping),
        value=_wide_per_head(call.value, heads, profile.grouping),
        visible=visible,
        by_position=by_position,
        by_mask=by_mask,
        mask_kind=mask_kind,
        mask_bias=mask_bias,
        alibi=alibi,
        scale=scale,
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.double(),
        mask_rounded_to=dtype if mask_bias is not None and _rounds(mask, dtype) else None,
        sinks_are_wider=_rounds(call.sinks, dtype),
        softcap_order=profile.softcap_order,
    )


def empty_rows(
    rows: Rows, profile: Profile
) -> dict[EmptyRow | None, Bool[torch.Tensor, "#batch #heads rows"]]:
    """Divide the rows that may read no key by the output that a profile gives them.

    A profile may have one answer for rows that a mask empties and another for the causal flag and
    the window. The output of a row of which both hide keys is undefined then.

    Returns:
        For each output, the rows that have it; the key None is of rows whose output is undefined.
    """
    is_empty = ~rows.visible.any(-1)
    by_position = profile.empty_row
    by_mask = by_position
    if rows.mask_kind is not None:
        by_mask = profile.empty_row_answers[rows.mask_kind]
    if rows.by_mask is None or by_position == by_mask:
        return {by_position: is_empty}
    position_hides, mask_hides = ~rows.by_position.all(-1), ~rows.by_mask.all(-1)
    return {
        by_position: is_empty & ~mask_hides,
        by_mask: is_empty & ~position_hides,
        None: is_empty & position_hides & mask_hides,
    }
