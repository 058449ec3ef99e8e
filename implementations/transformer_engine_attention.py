"""Transformer Engine's `DotProductAttention`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.dot_product_attention import from_dot_product_attention
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

OPTIONS = ("is_causal", "scale", "enable_gqa", "window")
"""The options that are claimed."""


@functools.cache
def _adapted() -> Callable[..., Any]:
    from transformer_engine.pytorch import DotProductAttention

    return from_dot_product_attention(DotProductAttention)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    **options: Any,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Import Transformer Engine on the first call, and call a module of it."""
    out: torch.Tensor = _adapted()(query, key, value, **options)
    return out


def supports(case: Case) -> str | None:
    """Return the reason why the module refuses a case, or None."""
    if empty(case):
        return "DotProductAttention takes no empty tensor"
    if case.d_head % 8 or case.d_value % 8:
        return "the fused kernels need d_head and d_value to be multiples of 8"
    is_causal = case.is_causal or (case.window is not None and case.window[1] == 0)
    if case.window and not is_causal and (case.window[0] is None) != (case.window[1] is None):
        return "the window of DotProductAttention has both bounds or none"
    if (case.is_causal or case.window) and case.queries > case.keys:
        return "a row without keys is not documented"
    return None


IMPLEMENTATION = Implementation(
    name="transformer_engine_attention",
    attention=cast(Attention, limited(attention, OPTIONS, attention)),
    features=frozenset({Feature.CAUSAL, Feature.GQA, Feature.WINDOW, Feature.BACKWARD}),
    dtypes=(torch.float16, torch.bfloat16),
    devices=("cuda",),
    supports=supports,
    unavailable=lambda: missing("transformer_engine") or no_device(),
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(accumulator=ACCUMULATOR),
        deterministic=False,  # the backward pass adds to dQ in no fixed order
    ),
)
