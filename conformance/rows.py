"""Rows: some queries of a call with everything that they read, in float64 and head by head."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int

from attnspec.conformance.call import Call
from attnspec.spec import CausalAlignment, Profile


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A run of rows of one call. Keys and values are repeated for each head that reads them.

    Attributes:
        query: of these rows.
        key: all keys.
        value: all values.
        visible: true where a row may read a key; (batch, heads) may be 1.
        mask_bias: the float mask, 0 where it hides; `None` without one.
        alibi: minus slope times distance; `None` without slopes.
        scale: multiplies the scores.
        softcap: bounds the scores.
        sinks: one more logit per head.
        mask_is_wider: the mask must be rounded to be added in the storage type.
        sinks_are_wider: likewise the sinks.
    """

    query: Float64[torch.Tensor, "batch heads rows d_head"]
    key: Float64[torch.Tensor, "batch heads keys d_head"]
    value: Float64[torch.Tensor, "batch heads keys d_value"]
    visible: Bool[torch.Tensor, "#batch #heads rows keys"]
    mask_bias: Float64[torch.Tensor, "#batch #heads #rows #keys"] | None
    alibi: Float64[torch.Tensor, "1 heads rows keys"] | None
    scale: float
    softcap: float | None
    sinks: Float64[torch.Tensor, " heads"] | None
    mask_is_wider: bool = False
    sinks_are_wider: bool = False

    @property
    def bias(self) -> Float64[torch.Tensor, "#batch #heads #rows #keys"] | None:
        """Everything that is added to the scores."""
        if self.mask_bias is None or self.alibi is None:
            return self.alibi if self.mask_bias is None else self.mask_bias
        return self.mask_bias + self.alibi


def per_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Give every query head the key/value head that its group reads."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def rows_of(call: Call, profile: Profile, rows: Int[torch.Tensor, " rows"]) -> Rows:
    """Take some rows of a call.

    Args:
        call: without dropout.
        profile: the alignment is read from it.
        rows: which queries, in any order.
    """
    heads, queries, d_head = call.query.shape[1:]
    keys = call.key.shape[2]
    rows = rows.to(call.query.device)
    lower_right = profile.causal_alignment == CausalAlignment.LOWER_RIGHT
    place = rows + (keys - queries if lower_right else 0)
    after = torch.arange(keys, device=rows.device) - place[:, None]
    visible = torch.ones_like(after, dtype=torch.bool)
    if call.is_causal:
        visible &= after <= 0
    left, right = call.window or (None, None)
    if left is not None:
        visible &= after >= -left
    if right is not None:
        visible &= after <= right
    visible = visible[None, None]
    mask_bias, alibi = None, None
    mask = call.attn_mask
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        mask = mask if mask.shape[2] == 1 else mask[:, :, rows]
        if mask.dtype == torch.bool:
            visible = visible & mask
        else:
            hides = mask == -torch.inf
            visible = visible & ~hides
            mask_bias = mask.double().masked_fill(hides, 0.0)
    if call.alibi_slopes is not None:
        alibi = -call.alibi_slopes.double()[None, :, None, None] * after.abs()
    dtype = call.query.dtype
    scale = call.scale
    if scale is None:
        scale = 1 / math.sqrt(d_head) if d_head else 1.0
    return Rows(
        query=call.query[:, :, rows].double(),
        key=per_head(call.key.double(), heads),
        value=per_head(call.value.double(), heads),
        visible=visible,
        mask_bias=mask_bias,
        alibi=alibi,
        scale=scale,
        softcap=call.softcap,
        sinks=None if call.sinks is None else call.sinks.double(),
        mask_is_wider=mask is not None and mask.dtype not in (dtype, torch.bool),
        sinks_are_wider=call.sinks is not None and call.sinks.dtype != dtype,
    )
