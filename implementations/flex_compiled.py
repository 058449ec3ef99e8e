"""torch's `flex_attention`, compiled: for a CPU, C++ code that inductor fills in from a template.

Each combination of options, storage type and sizes is compiled anew.
"""

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.nn.attention.flex_attention import flex_attention

from attnspec.implementations.adapters.flex_attention import from_flex_attention
from attnspec.implementations.compiled import unavailable
from attnspec.implementations.known_bugs import deviations, has_keys
from attnspec.spec import (
    Attention,
    Case,
    Feature,
    Implementation,
    Layout,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
)

VARIANTS = 4096
"""The limit of variants that torch compiles, past which it would run the function uncompiled."""

_compiled: list[Callable[..., Any]] = []


def compiled(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    score_mod: Callable[..., Any] | None,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """Call the compiled `flex_attention`, and raise instead of running it uncompiled.

    Args:
        query: (batch, heads, queries, d_head).
        key: (batch, kv_heads, keys, d_head).
        value: (batch, kv_heads, keys, d_value).
        score_mod: changes a scaled score, by its indices.
        block_mask: the visible pairs.
        scale: multiplies the scores.
        enable_gqa: true if query heads share key/value heads.
    """
    if not _compiled:
        # with dynamic shapes, a mask of four axes does not compile: findings/flex_attention.md
        _compiled.append(torch.compile(flex_attention, dynamic=False))
    limits = {
        "recompile_limit": VARIANTS,
        "accumulated_recompile_limit": VARIANTS,
        "fail_on_recompile_limit_hit": True,
    }
    with torch._dynamo.config.patch(limits), warnings.catch_warnings():
        # the compiler warns of its own imports, which a caller cannot change
        warnings.simplefilter("ignore")
        # one tensor as two arguments raises at times: findings/flex_attention.md
        query, key, value = (each.view_as(each) for each in (query, key, value))
        return _compiled[0](
            query,
            key,
            value,
            score_mod=score_mod,
            block_mask=block_mask,
            scale=scale,
            enable_gqa=enable_gqa,
        )


def supports(case: Case) -> str | None:
    """Return the reason why compiled `flex_attention` refuses a case, or None."""
    if min(case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value) == 0:
        return "compiled flex_attention takes no empty tensor"
    if case.mask is not None and case.layouts.mask in (Layout.SLICED, Layout.ODD_STRIDES):
        return f"a mask with a stride between keys does not compile ({PAGE}#a-strided-mask)"
    return None


def has_float_mask(case: Case) -> bool:
    """Return whether a float mask hides keys, by which scores of NaN stay NaN."""
    return case.mask is not None and case.mask.kind is MaskKind.FLOAT


def reads_wide_mask(case: Case) -> bool:
    """Return whether the call has a mask in float64, and queries in a narrower type."""
    return case.mask is not None and case.mask.dtype == torch.float64 != case.dtype


PAGE = "docs/findings/flex_attention.md"

NAN_DEVIATIONS = deviations(
    ("a-visible-nan-stays-visible", "a-readable-nan-key-stays-visible"),
    reason="a row whose largest score is NaN is taken for an empty one (seen in torch 2.13.0)",
    link=f"{PAGE}#nan-gives-zeros",
    applies=has_keys,
    example=Case(
        batch=2, heads=3, kv_heads=3, queries=2, keys=16, d_head=8, d_value=8, dtype=torch.float32
    ),
)

IMPLEMENTATION = Implementation(
    name="flex_compiled",
    attention=cast(Attention, from_flex_attention(compiled)),
    features=frozenset(
        {
            *(Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.WINDOW),
            *(Feature.SOFTCAP, Feature.ALIBI),
        }
    ),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=unavailable,
    profile=Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    ),
    deviations=(
        *NAN_DEVIATIONS,
        *deviations(
            ("unreadable-nan-and-infinity-follow-the-profile",),
            reason="a row of NaN, as hidden ones make it, is taken for an empty one (torch 2.13.0)",
            link=f"{PAGE}#nan-gives-zeros",
            applies=has_float_mask,
            example=Case(
                batch=2,
                heads=4,
                kv_heads=4,
                queries=5,
                keys=17,
                d_head=32,
                d_value=32,
                dtype=torch.float32,
                mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.HEADS),
            ),
        ),
        *deviations(
            ("a-float-mask-of-another-dtype-is-read-or-refused",),
            reason="a mask in float64 is misread by code for float32 (seen in torch 2.13.0)",
            link=f"{PAGE}#a-wide-mask",
            applies=reads_wide_mask,
            example=Case(
                queries=1,
                keys=3,
                d_head=2,
                d_value=2,
                dtype=torch.float32,
                mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, dtype=torch.float64),
            ),
        ),
    ),
    compiles_each_shape=True,
)
