"""The reference evaluator of the `onnx` package, operator `Attention`, version 23."""

import math
import struct
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.frameworks import missing
from attnspec.implementations.known_bugs import deviations
from attnspec.implementations.onnx_operators import run
from attnspec.spec import (
    Attention,
    Case,
    Deviation,
    Feature,
    Implementation,
    Mask,
    MaskedNonfinite,
    MaskPattern,
    MaskShape,
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
    """Run the operator; it would hide all keys but one for a mask that has one column."""
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[2])
    inputs = {"Q": query, "K": key, "V": value, "attn_mask": attn_mask}
    return run(
        "onnx",
        "Attention",
        inputs,
        is_causal=int(is_causal) or None,
        scale=scale,
        softcap=softcap,
    )


def in_float32(number: float) -> bool:
    """Return whether a float32, the type of an attribute, holds a number exactly."""
    try:
        return bool(struct.unpack("f", struct.pack("f", number))[0] == number)
    except OverflowError:
        return False


def supports(case: Case) -> str | None:
    """Return the reason why the evaluator refuses a case, or None."""
    if case.keys == 0 or case.d_head == 0:
        return "the reference evaluator takes no call without keys or channels"
    if case.scale is not None and (case.scale < 0 or math.isnan(case.scale)):
        return "the reference evaluator takes the square root of the scale"
    if case.dtype == torch.float64 and case.scale is not None:
        return "the reference evaluator takes the square root of the scale in float32"
    if case.dtype == torch.float64 and not in_float32(case.softcap or 1.0):
        return "attributes of ONNX are float32"
    return None


LAWS = (
    "options-combine",
    "batch-elements-are-independent",
    "mask-and-causal-flag-both-apply",
    "a-shared-prefix-equals-its-copies",
    "negative-and-zero-scale",
    "unreadable-nan-and-infinity-follow-the-profile",
)
"""The laws that detect the known bug in cases that every run tries."""

LAWS_OF_DRAWN_CASES = (
    "keys-of-zeros-are-keys",
    "output-is-linear-in-the-values",
    "identity-values-reveal-the-weights",
    "adding-a-vector-to-every-key-changes-nothing",
    "rotating-queries-and-keys-changes-nothing",
    "a-power-of-four-moves-from-scale-to-queries",
    "a-query-reads-exactly-its-keys",
    "a-key-affects-only-queries-that-read-it",
    "the-unused-part-of-a-buffer-changes-nothing",
    "a-changed-argument-changes-the-result",
    "other-calls-in-between-change-nothing",
    "every-output-is-within-its-bound",
    "every-biased-score-is-within-its-bound",
    "a-visible-nan-stays-visible",
    "a-readable-nan-key-stays-visible",
    "a-readable-nan-value-stays-visible",
    "a-readable-infinite-value-stays-visible",
    "every-two-regimes-equal-the-definition",
    "calls-of-models-equal-the-definition",
    "the-largest-calls-equal-the-definition",
    "every-three-sizes-equal-the-definition",
)
"""The laws that detect it from effort standard on, where cases are drawn."""


def has_one_row(case: Case) -> bool:
    """Return whether the causal mask is made for as many queries as the mask has: one."""
    return (
        case.is_causal
        and case.mask is not None
        and case.mask.shape in (MaskShape.KEYS, MaskShape.KEYS_OF_HEADS)
        and case.queries > 1
        and min(case.batch, case.heads, case.keys, case.d_value) > 0
    )


def repeats_first_row(case: Case) -> bool:
    """Return whether queries read other keys than the first one does, but get its causal mask."""
    return has_one_row(case) and case.keys > 1


def broadcasts(case: Case) -> bool:
    """Return whether a law that draws masks of every shape may add one of one row."""
    return case.is_causal and case.queries > 1 and case.keys > 1


EXAMPLE = Case(
    queries=2,
    keys=3,
    is_causal=True,
    mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS),
)

SQUARE = EXAMPLE.but(
    batch=2, heads=2, kv_heads=2, queries=8, keys=8, d_head=2, d_value=8, dtype=torch.float32
)
"""Some laws need a type that takes a scale, several elements, or a channel for each key."""


def found_by(
    laws: tuple[str, ...], applies: Callable[[Case], bool], example: Case = EXAMPLE
) -> tuple[Deviation, ...]:
    """Return a deviation for each law that detects the known bug, with a case that shows it."""
    return deviations(
        laws,
        reason=(
            "is_causal with a mask of one row gives every query the causal mask of the first one "
            "(seen in onnx 1.23.2)"
        ),
        link="docs/findings/onnx_reference.md#a-mask-of-one-row",
        applies=applies,
        example=example,
    )


IMPLEMENTATION = Implementation(
    name="onnx_reference",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.SOFTCAP}),
    dtypes=(torch.float64, torch.float32, torch.float16),
    supports=supports,
    unavailable=lambda: missing("onnx"),
    profile=Profile(
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    deviations=(
        # this law makes the shapes of its masks itself
        *found_by(("masks-broadcast",), broadcasts),
        *found_by(LAWS, repeats_first_row),
        *found_by(LAWS_OF_DRAWN_CASES, repeats_first_row, SQUARE),
    ),
)
