"""x-transformers' `Attend` with `flash=True`, which calls torch's function."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float

from attnspec.implementations.adapters.grouped_heads import from_grouped_shapes
from attnspec.implementations.cpu_kernels import DEVIATIONS, NEGATIVE_SCALE_LAW, PROFILE
from attnspec.implementations.frameworks import missing
from attnspec.implementations.x_transformers_attend import mask_arguments, module
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Feature,
    Grouping,
    Implementation,
    Layouts,
    MaskKind,
    RoundingLevel,
)


def _call(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Make a module with these options and call it."""
    options: dict[str, Any] = {"causal": is_causal, "scale": scale, "flash": True}
    out: torch.Tensor = module(**options)(query, key, value, **mask_arguments(attn_mask))[0]
    return out


def supports(case: Case) -> str | None:
    """Return the reason why the module refuses a case, or None."""
    if case.is_causal and case.queries > case.keys:
        # another alignment than with fewer queries: docs/findings/x_transformers.md
        return "a model has no fewer keys than queries"
    if case.is_causal and case.mask is not None and case.mask.kind is MaskKind.FLOAT:
        # it hides later keys less than minus infinity does: docs/findings/x_transformers.md
        return "a bias of minus infinity reveals later keys"
    if case.d_head == 0:
        return "Attend divides by d_head"
    return None


def _laid_out_anew(applies: Callable[[Case], bool]) -> Callable[[Case], bool]:
    """Return the condition of a bug of torch for operands in any layout.

    Attend writes queries, keys and values out, so that torch's flash kernel runs in all layouts.
    """
    return lambda case: applies(case) or applies(case.but(layouts=Layouts()))


IMPLEMENTATION = Implementation(
    name="x_transformers_flash",
    attention=cast(Attention, from_grouped_shapes(_call)),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("x_transformers"),
    profile=replace(
        PROFILE,
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        grouping=Grouping.INTERLEAVED,
        # a scale of its own multiplies the queries, and rounds them and their gradients again
        rounding=replace(PROFILE.rounding, level=RoundingLevel.EAGER),
    ),
    # the scale multiplies the queries, and is never given to torch
    deviations=tuple(
        replace(each, applies=_laid_out_anew(each.applies))
        for each in DEVIATIONS
        if each.law != NEGATIVE_SCALE_LAW
    ),
)
