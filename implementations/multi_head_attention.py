"""torch's `multi_head_attention_forward`, the function below `nn.MultiheadAttention`.

It projects its inputs and outputs; the projections here are identities without biases, which change
no number. A bool mask of it is true where a key is hidden.
"""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch.nn.functional import multi_head_attention_forward

from attnspec.implementations.cpu_kernels import DEVIATIONS, NEGATIVE_SCALE_LAW, PROFILE
from attnspec.spec import (
    Attention,
    Case,
    Deviation,
    Feature,
    Implementation,
    Layouts,
    MaskShape,
    Values,
)

WIDEST = 1024
"""Channels of all heads, as many as those of BERT large."""


def attention(
    query: Float[torch.Tensor, "batch heads queries channels"],
    key: Float[torch.Tensor, "batch heads keys channels"],
    value: Float[torch.Tensor, "batch heads keys channels"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> Float[torch.Tensor, "batch heads queries channels"]:
    """Pack the heads, call torch's function with identities for its projections, and unpack.

    Raises:
        ValueError: for unequal head counts or channels, or a mask together with `is_causal`, which
            the function takes for a promise that the mask is the causal one.
    """
    batch, heads, queries, channels = query.shape
    keys = key.shape[2]
    if not (key.shape[1] == value.shape[1] == heads and key.shape[3] == value.shape[3] == channels):
        raise ValueError("query, key and value must have the same heads and channels")
    if attn_mask is not None and is_causal:
        raise ValueError("a mask and is_causal together: the mask must be the causal one then")
    hidden = None
    if attn_mask is not None:
        full = attn_mask.expand(batch, heads, queries, keys).flatten(0, 1)
        hidden = ~full if full.dtype == torch.bool else full
    elif is_causal:
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(1)
    wide = heads * channels
    identity = torch.eye(wide, dtype=query.dtype, device=query.device)
    # (length, batch, heads · channels)
    packed_query, packed_key, packed_value = (
        tensor.permute(2, 0, 1, 3).flatten(2) for tensor in (query, key, value)
    )
    out, _ = multi_head_attention_forward(
        packed_query,
        packed_key,
        packed_value,
        embed_dim_to_check=wide,
        num_heads=heads,
        in_proj_weight=identity.repeat(3, 1),
        in_proj_bias=None,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=dropout_p,
        out_proj_weight=identity,
        out_proj_bias=None,
        training=dropout_p > 0,
        need_weights=False,
        attn_mask=hidden,
        is_causal=is_causal,
    )
    return out.reshape(queries, batch, heads, channels).permute(1, 2, 0, 3)


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.scale is not None:
        return "multi_head_attention_forward has no scale"
    if case.d_head != case.d_value:
        return "multi_head_attention_forward needs d_value = d_head"
    if case.mask is not None and case.is_causal:
        return "multi_head_attention_forward takes is_causal for a promise about the mask"
    if case.mask is not None and case.keys == 0 and case.batch * case.heads > 1:
        return "multi_head_attention_forward cannot reshape a mask without keys"
    if case.heads * case.d_head > WIDEST:
        return f"identities as projections of over {WIDEST} channels take minutes and gigabytes"
    overflows = case.dtype == torch.float16 and case.values is Values.CANCELLATION
    if overflows and case.backward:
        return "a projection's gradient spreads what overflows in one head to the others"
    return None


def reaching_torch(case: Case) -> Case:
    """Return the case of the call that the function makes of `scaled_dot_product_attention`.

    Its projections return contiguous tensors, and its masks are of full rank.
    """
    mask = None if case.mask is None else replace(case.mask, shape=MaskShape.FULL)
    return case.but(mask=mask, layouts=Layouts())


def _of_torch(deviation: Deviation) -> Deviation:
    return replace(deviation, applies=lambda case: deviation.applies(reaching_torch(case)))


def _mixes_channels(case: Case) -> bool:
    """Return whether a projection adds zero times one number to another."""
    return case.heads * case.d_value > 1


def _mixes_heads(case: Case) -> bool:
    return case.heads > 1


TWO_CHANNELS = Case(d_head=2, d_value=2, dtype=torch.float32)
TWO_HEADS = Case(heads=2, kv_heads=2, dtype=torch.float32)

PROJECTED = tuple(
    Deviation(
        law=law,
        reason=(
            "multi_head_attention_forward always projects, here by identities: NaN times zero is "
            "NaN, so a NaN reaches every channel of its token (seen in torch 2.13.0)"
        ),
        link="docs/findings/multi_head_attention.md#identities-spread-nan",
        applies=applies,
        example=example,
    )
    for law, applies, example in (
        ("value-channels-are-independent", _mixes_channels, TWO_CHANNELS),
        ("heads-are-independent", _mixes_heads, TWO_HEADS),
        ("a-readable-nan-key-stays-visible", _mixes_heads, TWO_HEADS),
        ("a-readable-nan-value-stays-visible", _mixes_channels, TWO_CHANNELS),
        ("a-readable-infinite-value-stays-visible", _mixes_channels, TWO_CHANNELS),
    )
)
"""What the projections do to NaN, which no call can switch off."""

IMPLEMENTATION = Implementation(
    name="multi_head_attention",
    attention=cast(Attention, attention),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.DROPOUT, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    profile=PROFILE,
    deviations=(
        *PROJECTED,
        *(_of_torch(each) for each in DEVIATIONS if each.law != NEGATIVE_SCALE_LAW),
    ),
)
