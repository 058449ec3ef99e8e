"""ONNX Runtime's kernel of the standard's operator `Attention`, version 23."""

from typing import cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.frameworks import missing
from attnspec.implementations.onnx_operators import run
from attnspec.spec import (
    Attention,
    Case,
    Deviation,
    Feature,
    Implementation,
    MaskedNonfinite,
    MaskKind,
    Profile,
    Rounding,
    RoundingLevel,
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
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Run the operator; a mask has all queries and keys, but may have one head or element."""
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], query.shape[2], key.shape[2])
    inputs = {"Q": query, "K": key, "V": value, "attn_mask": attn_mask}
    return run(
        "onnxruntime",
        "Attention",
        inputs,
        is_causal=int(is_causal) or None,
        scale=scale,
        softcap=softcap,
    )


def supports(case: Case) -> str | None:
    """Return the reason why the kernel refuses a case, or None."""
    sizes = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    if min(sizes) == 0:
        return "ONNX Runtime's Attention takes no empty tensor"
    if case.scale is not None and case.scale <= 0:
        return "ONNX Runtime's Attention takes no scale of 0 or below"
    return None


def adds_a_finite_number(case: Case) -> bool:
    """Return whether keys are hidden by adding the smallest finite number of float16."""
    is_bool = case.mask is not None and case.mask.kind is MaskKind.BOOL
    hides = is_bool or (case.is_causal and case.keys > 1)
    return hides and case.dtype == torch.float16


IMPLEMENTATION = Implementation(
    name="ort_attention",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.SOFTCAP}),
    dtypes=(torch.float32, torch.float16),
    supports=supports,
    unavailable=lambda: missing("onnxruntime") or missing("onnx"),
    profile=Profile(
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    deviations=(
        Deviation(
            law="unreadable-nan-and-infinity-follow-the-profile",
            reason=(
                "in float16 a score beyond 65504 at a key that a bool mask or the causal flag "
                "hides takes all of the weight (seen in onnxruntime 1.32.0)"
            ),
            link="docs/findings/onnxruntime.md#a-hidden-score-that-overflows",
            applies=adds_a_finite_number,
            example=Case(
                heads=4, kv_heads=4, queries=8, keys=9, dtype=torch.float16, is_causal=True
            ),
        ),
    ),
)
