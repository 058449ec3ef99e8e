"""FlashInfer's `single_prefill_with_kv_cache`, on a CUDA device, one batch element at a time.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.adapters.single_prefill import from_single_prefill
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

OPTIONS = ("is_causal", "scale", "enable_gqa", "window", "softcap", "return_lse")
"""The options that are claimed."""


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flashinfer import single_prefill_with_kv_cache

    return from_single_prefill(single_prefill_with_kv_cache)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    **options: Any,
) -> Any:
    """Import FlashInfer on the first call, and call its function."""
    return _adapted()(query, key, value, **options)


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if empty(case):
        return "single_prefill_with_kv_cache takes no empty tensor"
    if case.d_head != case.d_value or case.d_head not in (64, 128, 256):
        return "single_prefill_with_kv_cache needs d_value = d_head, of 64, 128 or 256"
    is_causal = case.is_causal or (case.window is not None and case.window[1] == 0)
    if not is_causal and case.window is not None and case.window[1] is not None:
        return "the window of single_prefill_with_kv_cache has no bound among later keys"
    if (is_causal or case.window) and case.queries > case.keys:
        return "a row without keys is not documented"
    return None


IMPLEMENTATION = Implementation(
    name="flashinfer_attention",
    attention=cast(Attention, limited(attention, OPTIONS, attention)),
    features=frozenset({Feature.CAUSAL, Feature.GQA, Feature.WINDOW, Feature.SOFTCAP, Feature.LSE}),
    dtypes=(torch.float16, torch.bfloat16),
    devices=("cuda",),
    supports=supports,
    unavailable=lambda: missing("flashinfer") or no_device(),
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(accumulator=ACCUMULATOR),
    ),
)
