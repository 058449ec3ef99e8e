"""Flax's `flax.linen.dot_product_attention`, which computes in the storage type."""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.jax_arrays import from_jax
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.frameworks import missing
from attnspec.spec import (
    Attention,
    Case,
    EmptyRow,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flax import linen

    return from_jax(linen.dot_product_attention)


def _call(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch heads keys d_head"],
    value: Float[torch.Tensor, "batch heads keys d_value"],
    **options: Any,
) -> Any:
    """Import Flax on the first call, and call its function."""
    return _adapted()(query, key, value, **options)


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.scale is not None:
        return "flax.linen.dot_product_attention has no scale"
    if case.d_head == 0:
        return "flax.linen.dot_product_attention divides by d_head for its scale"
    if case.keys == 0:
        return "flax.linen.dot_product_attention takes no call without keys"
    return None


IMPLEMENTATION = Implementation(
    name="flax_attention",
    attention=cast(Attention, limited(_call, ("attn_mask",), _call)),
    features=frozenset({Feature.MASK, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=lambda: missing("flax"),
    profile=Profile(
        empty_row=EmptyRow.MEAN,
        empty_row_float_mask=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    compiles_each_shape=True,
)
