"""xFormers' `memory_efficient_attention`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.memory_efficient_attention import (
    from_memory_efficient_attention,
)
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.cuda import ACCUMULATOR, empty, no_device
from attnspec.implementations.frameworks import missing
from attnspec.spec import (
    Attention,
    Case,
    CausalAlignment,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
)

OPTIONS = ("dropout_p", "is_causal", "scale", "enable_gqa", "window")
"""The options that are claimed; a bias needs memory of a certain alignment."""


@functools.cache
def _adapted() -> Callable[..., Any]:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import (
        LocalAttentionFromBottomRightMask,
        LowerTriangularFromBottomRightMask,
    )

    return from_memory_efficient_attention(
        memory_efficient_attention,
        causal=LowerTriangularFromBottomRightMask,
        window=LocalAttentionFromBottomRightMask,
    )


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    **options: Any,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Import xFormers on the first call, and call its function."""
    out: torch.Tensor = _adapted()(query, key, value, **options)
    return out


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if empty(case):
        return "memory_efficient_attention takes no empty tensor"
    if case.d_head % 8 or case.d_value % 8:
        return "memory_efficient_attention needs d_head and d_value to be multiples of 8"
    if (case.is_causal or case.window) and case.queries > case.keys:
        return "a row without keys is not documented"
    return None


IMPLEMENTATION = Implementation(
    name="xformers_attention",
    attention=cast(Attention, limited(attention, OPTIONS, attention)),
    features=frozenset(
        {Feature.CAUSAL, Feature.GQA, Feature.WINDOW, Feature.DROPOUT, Feature.BACKWARD}
    ),
    dtypes=(torch.float16, torch.bfloat16),
    devices=("cuda",),
    supports=supports,
    unavailable=lambda: missing("xformers") or no_device(),
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(accumulator=ACCUMULATOR),
        deterministic=False,  # the backward pass adds to dQ in no fixed order
    ),
)
