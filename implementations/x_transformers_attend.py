"""x-transformers' `Attend` without its flash path: einsum, softmax in float32, einsum."""

import functools
from typing import Any, cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.adapters.mask_routing import of_rank_4
from attnspec.implementations.frameworks import missing
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    EmptyRow,
    Feature,
    Float64Precision,
    Grouping,
    Implementation,
    MaskedNonfinite,
    MaskKind,
    Profile,
    Rounding,
    RoundingLevel,
    SoftcapOrder,
)


@functools.lru_cache(maxsize=64)
def module(**options: Any) -> Any:
    """Return an `Attend`, which is a module without parameters."""
    from x_transformers.attend import Attend

    return Attend(**options)


def mask_arguments(
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None,
) -> dict[str, torch.Tensor]:
    """Return a mask under the module's name for its kind, in rank 4."""
    if attn_mask is None:
        return {}
    return {"mask" if attn_mask.dtype == torch.bool else "attn_bias": of_rank_4(attn_mask)}


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
    """Make a module with these options, which are the module's and not the call's, and call it."""
    options: dict[str, Any] = {"causal": is_causal, "scale": scale}
    if softcap is not None:
        options |= {"softclamp_logits": True, "logit_softclamp_value": softcap}
    out: torch.Tensor = module(**options)(query, key, value, **mask_arguments(attn_mask))[0]
    return out


def supports(case: Case) -> str | None:
    """Return the reason why the module refuses a case, or None."""
    if case.d_head == 0:
        return "Attend divides by d_head for its default scale"
    if case.softcap is not None and case.mask is not None and case.mask.kind is MaskKind.FLOAT:
        # the sum with the bias is clamped, minus infinity too: docs/findings/x_transformers.md
        return "a float mask hides no key beside a softcap"
    if case.mask is not None and case.mask.dtype not in (None, case.dtype):
        return "Attend takes a float mask of the operands' type alone"
    has_bool_mask = case.mask is not None and case.mask.kind is MaskKind.BOOL
    is_emptied = case.is_causal and (case.queries > case.keys or has_bool_mask)
    if is_emptied and case.dtype == torch.float64:
        # docs/findings/x_transformers.md
        return "in float64 a row that the causal flag leaves without keys is NaN"
    if has_bool_mask and case.backward and case.dtype == torch.float64:
        return "in float64 gradients are NaN if a bool mask leaves a row without keys"
    return None


IMPLEMENTATION = Implementation(
    name="x_transformers_attend",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.SOFTCAP, Feature.BACKWARD}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("x_transformers"),
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        empty_row=EmptyRow.MEAN,
        empty_row_bool_mask=EmptyRow.ZERO,
        empty_row_float_mask=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        grouping=Grouping.INTERLEAVED,
        softcap_order=SoftcapOrder.AFTER_BIAS,
        float64_precision=Float64Precision.FLOAT32,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
)
