"""ONNX Runtime's kernel of the standard's operator `Attention`, version 24, on a cache.

As in `onnx_reference_cache`, every call has lengths, with which the causal flag ends at the last
key of each batch element.
"""

from dataclasses import replace
from typing import cast

import torch

from attnspec.implementations import ort_attention
from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.onnx_operators import attention_on_cache
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


def adds_a_finite_number(case: Case) -> bool:
    """Return whether a mask hides keys by adding the smallest finite number of float16."""
    is_bool = case.mask is not None and case.mask.kind is MaskKind.BOOL
    return is_bool and case.dtype == torch.float16


PLAIN = ort_attention.IMPLEMENTATION
IMPLEMENTATION = replace(
    PLAIN,
    name="ort_attention_cache",
    # the kernel takes masks of one head or element, with all queries and keys
    attention=cast(Attention, from_grouped_shapes(attention_on_cache("onnxruntime", full_axes=2))),
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
