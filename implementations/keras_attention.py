"""Keras's `keras.ops.dot_product_attention` on its torch backend.

It takes bool masks as `mask` and float masks as `bias`, and calls torch's function.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.adapters.heads_after_length import from_heads_after_length
from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.cpu_kernels import DEVIATIONS, PROFILE, SUMMED_GRADIENT
from attnspec.implementations.frameworks import missing
from attnspec.implementations.known_bugs import deviations
from attnspec.spec import (
    Attention,
    Case,
    Deviation,
    EmptyRow,
    Feature,
    Implementation,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)


@functools.cache
def _function() -> Callable[..., Any]:
    """Import Keras with its torch backend.

    Raises:
        RuntimeError: if Keras was imported with another backend.
    """
    before = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = "torch"
    try:
        import keras
    finally:
        if before is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = before
    if keras.backend.backend() != "torch":
        raise RuntimeError(f"keras runs on {keras.backend.backend()}: import it with torch")
    function: Callable[..., Any] = keras.ops.dot_product_attention
    return function


def _call(
    query: Float[torch.Tensor, "batch queries heads d_head"],
    key: Float[torch.Tensor, "batch keys kv_heads d_head"],
    value: Float[torch.Tensor, "batch keys kv_heads d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[torch.Tensor, "batch queries heads d_value"]:
    if attn_mask is not None and attn_mask.dtype != torch.bool and is_causal:
        raise ValueError("a float mask and is_causal together: torch may refuse what Keras passes")
    given = {}
    if attn_mask is not None:
        given["mask" if attn_mask.dtype == torch.bool else "bias"] = of_rank_4(attn_mask)
    out: torch.Tensor = _function()(query, key, value, is_causal=is_causal, scale=scale, **given)
    return out


def supports(case: Case) -> str | None:
    """Return the reason why Keras refuses a case, or None."""
    if case.mask is not None and case.mask.kind is MaskKind.FLOAT and case.is_causal:
        # it works if torch chooses its flash kernel: docs/findings/keras.md
        return "Keras passes a bias and is_causal to torch, whose math kernel refuses them"
    return None


def falls_short(case: Case) -> bool:
    """Return whether hidden scores stay comparable: -45850 is added to them in float16."""
    return (
        case.dtype == torch.float16
        and case.mask is not None
        and case.mask.kind is MaskKind.BOOL
        and min(case.batch, case.heads, case.queries, case.keys, case.d_value) > 0
    )


def is_float16(case: Case) -> bool:
    """Return whether a bool mask that a law adds to a case would fall short."""
    return case.dtype == torch.float16


def _found_by(
    laws: tuple[str, ...], example: Case, applies: Callable[[Case], bool] = falls_short
) -> tuple[Deviation, ...]:
    return deviations(
        laws,
        reason=(
            "in float16 a bool mask adds -45850 to hidden scores, so a row that reads nothing "
            "is plain attention, and a large hidden score is read (seen in Keras 3.15.1)"
        ),
        link="docs/findings/keras.md#a-row-without-keys-is-plain-attention-in-float16",
        applies=applies,
        example=example,
    )


EMPTY = Case(queries=2, keys=3, dtype=torch.float16, mask=Mask(pattern=MaskPattern.EMPTY_ROWS))
EMPTY_IN_GROUPS = EMPTY.but(batch=2, heads=4, kv_heads=2, queries=8, keys=7, d_head=16, d_value=16)

LAWS = (
    *("an-empty-row-gives-the-declared-output", "output-lies-among-the-readable-values"),
    *("output-is-linear-in-the-values", "identity-values-reveal-the-weights"),
    *("batch-elements-are-independent", "heads-are-independent", "options-combine"),
    *("adding-a-vector-to-every-key-changes-nothing", "repeating-every-key-changes-nothing"),
    *("rotating-queries-and-keys-changes-nothing", "scale-multiplies-the-scores"),
    *("default-scale", "negative-and-zero-scale", "a-power-of-four-moves-from-scale-to-queries"),
    *("value-channels-are-independent", "a-key-affects-only-queries-that-read-it"),
    *("shared-heads-equal-repeated-heads", "permuting-heads-permutes-the-output"),
    *("the-unused-part-of-a-buffer-changes-nothing", "a-shared-prefix-equals-its-copies"),
    *("requiring-gradients-changes-no-output", "every-output-is-within-its-bound"),
    *("every-biased-score-is-within-its-bound", "every-two-regimes-equal-the-definition"),
    *("calls-of-models-equal-the-definition", "the-largest-calls-equal-the-definition"),
    "every-three-sizes-equal-the-definition",
)
"""The laws that draw a mask which lets a query read nothing."""

LAWS_OF_GRADIENTS = (
    "gradients-in-every-two-regimes-equal-the-definition",
    "gradients-in-training-of-models-equal-the-definition",
    "gradients-of-the-largest-calls-equal-the-definition",
    "gradients-at-every-three-sizes-equal-the-definition",
)

OF_TORCH = (
    *(
        replace(each, example=each.example.but(dtype=torch.float32))
        for each in DEVIATIONS
        if each.applies(each.example.but(dtype=torch.float32))
    ),
    SUMMED_GRADIENT,
)
"""The deviations of torch in the types that Keras takes."""

IMPLEMENTATION = Implementation(
    name="keras_attention",
    attention=cast(Attention, from_grouped_shapes(from_heads_after_length(_call))),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("keras"),
    profile=replace(PROFILE, empty_row_bool_mask=EmptyRow.MEAN),
    deviations=(
        *OF_TORCH,
        *_found_by(LAWS, EMPTY),
        *_found_by(LAWS_OF_GRADIENTS, EMPTY.but(backward=True)),
        *_found_by(("dominant-key-gives-its-value",), EMPTY_IN_GROUPS),
        *_found_by(
            ("unreadable-nan-and-infinity-follow-the-profile",),
            Case(
                batch=2,
                heads=2,
                kv_heads=2,
                keys=2,
                d_head=8,
                dtype=torch.float16,
                mask=Mask(shape=MaskShape.FULL),
            ),
        ),
        # this law draws its masks itself
        *_found_by(
            ("masks-broadcast",),
            Case(heads=3, kv_heads=3, keys=2, dtype=torch.float16, seed=2),
            is_float16,
        ),
    ),
)
