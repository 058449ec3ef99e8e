"""ONNX Runtime's kernel of the standard's operator `Attention`, version 24, on a cache.

As in `onnx_reference_cache`, every call has lengths, with which the causal flag ends at the last
key of each batch element.
"""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.implementations import ort_attention
from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.onnx_operators import run_on_cache
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Deviation,
    Feature,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)


def _call(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    key_lengths: Int[torch.Tensor, " batch"] | None = None,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Run the operator; a mask has all queries and keys, but may have one head or element."""
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], query.shape[2], key.shape[2])
    return run_on_cache(
        "onnxruntime",
        query,
        key,
        value,
        attn_mask,
        key_lengths,
        is_causal=is_causal,
        scale=scale,
        softcap=softcap,
    )


def adds_a_finite_number(case: Case) -> bool:
    """Return whether a mask hides keys by adding the smallest finite number of float16."""
    is_bool = case.mask is not None and case.mask.kind is MaskKind.BOOL
    return is_bool and case.dtype == torch.float16


PLAIN = ort_attention.IMPLEMENTATION
IMPLEMENTATION = replace(
    PLAIN,
    name="ort_attention_cache",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=PLAIN.features | {Feature.KEY_LENGTHS},
    profile=replace(PLAIN.profile, causal_alignment=CausalAlignment.LOWER_RIGHT),
    deviations=(
        Deviation(
            law="unreadable-nan-and-infinity-follow-the-profile",
            reason=(
                "in float16 a score beyond 65504 at a key that a bool mask hides takes all of the "
                "weight (seen in onnxruntime 1.32.0)"
            ),
            link="docs/findings/onnxruntime.md#a-hidden-score-that-overflows",
            applies=adds_a_finite_number,
            example=Case(
                heads=4,
                kv_heads=4,
                queries=8,
                keys=9,
                dtype=torch.float16,
                mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS),
            ),
        ),
    ),
)
