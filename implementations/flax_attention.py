"""Flax's `flax.linen.dot_product_attention`, which computes in the storage type."""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.jax_arrays import from_jax
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.frameworks import missing
from attnspec.implementations.known_bugs import deviations
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


def _sums_many_exponentials(case: Case) -> bool:
    """Return whether exponentials of the gradient's softmax may add up to more than 256."""
    return case.backward and case.dtype == torch.float16 and case.keys > 256


GRADIENTS = (
    "gradients-in-every-two-regimes-equal-the-definition",
    "gradients-in-training-of-models-equal-the-definition",
    "gradients-of-the-largest-calls-equal-the-definition",
    "gradients-at-every-three-sizes-equal-the-definition",
)

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
    deviations=deviations(
        GRADIENTS,
        reason=(
            "the gradient of jax.nn.softmax in float16 squares the sum of the exponentials, "
            "which is infinite from 256 on (seen in jax 0.10.2)"
        ),
        link="docs/findings/jax.md#the-gradient-of-softmax-in-float16",
        applies=_sums_many_exponentials,
        example=Case(
            queries=352, keys=1056, d_head=3, d_value=3, dtype=torch.float16, backward=True
        ),
    ),
)
