"""Attention functions of Hugging Face's transformers, called as its models call them.

A model makes its masks by the function that is registered beside the attention: the causal mask,
and a bool mask that is common to all heads. A query is the last of the keys, so a causal diagonal
is aligned at the lower right. A float mask of rank 4 goes to the attention as it is.
"""

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.attention_interface import from_attention_interface
from attnspec.implementations.adapters.flex_attention import MOST_BLOCK_MASKS
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.cpu_kernels import DEVIATIONS, PROFILE
from attnspec.implementations.cpu_products import is_stored_in_bfloat16, rows_are_apart
from attnspec.implementations.frameworks import missing
from attnspec.spec import (
    Case,
    CausalAlignment,
    Deviation,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
)

OF_ALL_HEADS = (MaskShape.BATCH, MaskShape.KEYS, MaskShape.QUERIES, MaskShape.RANK_2)
"""The shapes of masks that a model can make."""


def unavailable() -> str | None:
    """Return the reason why transformers cannot be used here, or None."""
    return missing("transformers")


def as_model_calls(model: str, name: str, *, names: Collection[str]) -> Callable[..., Any]:
    """Return an attention of transformers, which is imported when it is first called.

    Args:
        model: the model, such as `gpt2`, whose own function `eager` is.
        name: `eager`, `sdpa` or `flex_attention`.
        names: the options of the contract that it takes; `enable_gqa` if the module of the model
            knows its groups of heads.
    """

    @functools.cache
    def adapted() -> Callable[..., Any]:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        modeling = import_module(f"transformers.models.{model}.modeling_{model}")
        return from_attention_interface(
            ALL_ATTENTION_FUNCTIONS.get_interface(name, modeling.eager_attention_forward),
            mask_interface=ALL_MASK_ATTENTION_FUNCTIONS[name],
            grouped="enable_gqa" in names,
        )

    def attention(
        query: Float[torch.Tensor, "batch heads queries d_head"],
        key: Float[torch.Tensor, "batch kv_heads keys d_head"],
        value: Float[torch.Tensor, "batch kv_heads keys d_value"],
        **options: Any,
    ) -> Float[torch.Tensor, "batch heads queries d_value"]:
        out: torch.Tensor = adapted()(query, key, value, **options)
        return out

    return limited(attention, names, attention)


def supports(case: Case) -> str | None:
    """Return the reason why no model makes a call like a case, or None."""
    if case.is_causal and case.queries > case.keys:
        return "a model has no fewer keys than queries"
    if case.mask is None:
        return None
    if case.mask.kind is MaskKind.BOOL and case.mask.shape not in OF_ALL_HEADS:
        return "the masks of a model are common to all heads"
    if case.mask.kind is MaskKind.FLOAT and case.is_causal:
        return "a float mask replaces the causal mask of a model"
    return None


def flex_supports(case: Case) -> str | None:
    """Return the reason why a model does not make a call like a case by `flex_attention`, or None.

    Bugs of compiled calls are in docs/findings/transformers_flex_attention.md, whose tests make
    them in processes of their own.
    """
    if case.keys == 0:
        return "flex_attention takes no call without keys"
    if case.queries == 0:
        return "transformers makes no block mask without queries"
    if case.batch > MOST_BLOCK_MASKS and (case.mask is not None or case.is_causal):
        return "a block mask has 128 queries and keys for each element: these take gigabytes"
    if case.mask is not None and case.mask.kind is MaskKind.FLOAT:
        repeated = {
            MaskShape.BATCH: 1,
            MaskShape.RANK_2: case.batch,
            MaskShape.KEYS: case.queries,
            MaskShape.QUERIES: case.keys,
        }
        if case.mask.shape not in repeated:
            page = "docs/findings/transformers_flex_attention.md"
            return f"a float mask is read as that of the first head ({page})"
        if repeated[case.mask.shape] != 1:
            return "a float mask is read by four indices, and is not repeated along an axis"
    return supports(case)


LARGE = (
    *(Values.PEAKED, Values.NEGATIVE, Values.VERY_NEGATIVE, Values.OFFSET),
    *(Values.GROWING, Values.CLIMBING, Values.ONE_HOT, Values.NEEDLES, Values.UNEVEN),
)
"""Numbers whose scores exceed 16."""


def eager_supports(case: Case) -> str | None:
    """Return the reason why no model makes a call like a case by its own function, or None."""
    has_bool_mask = case.mask is not None and case.mask.kind is MaskKind.BOOL
    is_scaled = case.scale is not None and abs(case.scale) * math.sqrt(case.d_head) > 1
    if case.dtype == torch.float16 and has_bool_mask and (case.values in LARGE or is_scaled):
        # most laws that draw masks meet it
        page = "docs/findings/transformers_eager.md"
        return f"in float16 a hidden row is no mean where a score is 16 or more ({page})"
    return supports(case)


def float32_supports(case: Case) -> str | None:
    """Return likewise for an eager function whose softmax is computed in float32."""
    is_bool = case.mask is not None and case.mask.kind is MaskKind.BOOL
    if is_bool and case.dtype == torch.float64:
        return "in float64 the number that hides a key overflows the softmax in float32"
    return eager_supports(case)


def sdpa_supports(case: Case) -> str | None:
    """Return the reason why no model makes a call like a case by `sdpa`, or None."""
    if min(case.batch, case.heads, case.queries, case.d_value) == 0:
        return "transformers reshapes the output, which must not be empty"
    return supports(case)


def reaching_torch(case: Case) -> Case:
    """Return the case of the call that `sdpa` makes of torch's function.

    Causal calls have a mask, unless there are as many queries as keys, or one query.
    """
    mask = case.mask
    is_causal = case.is_causal and mask is None and case.queries == case.keys > 1
    if mask is not None and mask.shape is MaskShape.RANK_3:
        mask = replace(mask, shape=MaskShape.HEADS)
    if case.is_causal and mask is None and 1 < case.queries != case.keys:
        mask = Mask(shape=MaskShape.BATCH)
    return case.but(mask=mask, is_causal=is_causal)


def _of_torch(deviation: Deviation) -> Deviation:
    return replace(deviation, applies=lambda case: deviation.applies(reaching_torch(case)))


SDPA_DEVIATIONS = tuple(map(_of_torch, DEVIATIONS))
"""The known bugs of torch's kernels, in the calls that reach them."""

SDPA_PROFILE = replace(PROFILE, causal_alignment=CausalAlignment.LOWER_RIGHT)

EMPTY_IN_BFLOAT16 = Case(
    queries=17,
    keys=63,
    d_head=5,
    d_value=4,
    dtype=torch.bfloat16,
    mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.BATCH),
)


def _has_rows_of_nan(case: Case) -> bool:
    """Return whether a row of weights is NaN in a product of bfloat16 numbers."""
    is_float = case.mask is not None and case.mask.kind is MaskKind.FLOAT
    return is_stored_in_bfloat16(case) and is_float


EAGER_DEVIATIONS = tuple(
    Deviation(
        law=law,
        reason=(
            "a query that a float mask lets read no key makes the row before it NaN too, in matrix "
            "products of bfloat16 on CPUs with AMX (seen in torch 2.13.0)"
        ),
        link="docs/findings.md#the-row-before-a-row-of-nan",
        applies=_has_rows_of_nan,
        example=EMPTY_IN_BFLOAT16,
        unavailable=rows_are_apart,
    )
    for law in ("options-combine", "an-empty-row-gives-the-declared-output")
)
"""A known bug of torch's matrix products, where an eager function gives NaN for an empty row."""
