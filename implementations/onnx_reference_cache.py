"""The reference evaluator of the `onnx` package, operator `Attention`, version 24, on a cache.

Keys and values are a cache, of which each batch element has its first `nonpad_kv_seqlen` ones. The
causal flag then ends at the last of these; without lengths it begins at the first key, in version
24 as in 23 (`onnx_reference`). So every call has lengths here, if need be those of the tensors.
"""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int

from attnspec.implementations import onnx_reference
from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.onnx_operators import run_on_cache
from attnspec.implementations.onnx_reference import found_by, repeats_first_row
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Feature,
    KeyLengths,
    Mask,
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
    """Run the operator; it would hide all keys but one for a mask that has one column."""
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[2])
    return run_on_cache(
        "onnx",
        query,
        key,
        value,
        attn_mask,
        key_lengths,
        is_causal=is_causal,
        scale=scale,
        softcap=softcap,
    )


LAWS = (
    "a-batch-of-lengths-equals-separate-calls",
    "lengths-and-options-combine",
    "positions-count-from-the-length",
)
"""The laws of lengths that detect the known bug."""

EXAMPLE = Case(
    queries=4,
    keys=5,
    is_causal=True,
    mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS),
)
"""Queries that read unequal numbers of the keys that the mask shows."""

PLAIN = onnx_reference.IMPLEMENTATION
IMPLEMENTATION = replace(
    PLAIN,
    name="onnx_reference_cache",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=PLAIN.features | {Feature.KEY_LENGTHS},
    profile=replace(PLAIN.profile, causal_alignment=CausalAlignment.LOWER_RIGHT),
    deviations=(
        *(replace(each, example=EXAMPLE) for each in PLAIN.deviations),
        *found_by(LAWS, repeats_first_row, EXAMPLE.but(batch=2, key_lengths=KeyLengths.RAGGED)),
    ),
)
