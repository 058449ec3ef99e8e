"""FlashAttention 2: `flash_attn.flash_attn_func`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.flash_attn_func import from_flash_attn_func
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

OPTIONS = (
    *("dropout_p", "is_causal", "scale", "enable_gqa"),
    *("window", "softcap", "alibi_slopes", "return_lse"),
)
"""The options of the contract that the function has."""

PROFILE = Profile(
    causal_alignment=CausalAlignment.LOWER_RIGHT,
    masked_keys=MaskedNonfinite.PROPAGATES,
    masked_values=MaskedNonfinite.PROPAGATES,
    rounding=Rounding(accumulator=ACCUMULATOR),
    deterministic=False,  # the backward pass adds to dQ in no fixed order
)


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flash_attn import flash_attn_func

    return from_flash_attn_func(flash_attn_func)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_head"],
    **options: Any,
) -> Any:
    """Import FlashAttention on the first call, and call its function."""
    return constant_lse(_adapted()(query, key, value, **options))


def constant_lse(result: Any) -> Any:
    """Return the result of a call; its log-sum-exp has no gradient."""
    return (result[0], result[1].detach()) if isinstance(result, tuple) else result


def supports(case: Case) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if empty(case):
        return "flash_attn_func takes no empty tensor"
    if case.d_head != case.d_value:
        return "flash_attn_func needs d_value = d_head"
    if case.d_head > 256:
        return "flash_attn_func needs d_head <= 256"
    if case.return_lse and (case.is_causal or case.window) and case.queries > case.keys:
        return "the log-sum-exp of a row without keys is not documented"
    return None


IMPLEMENTATION = Implementation(
    name="flash_attn_2",
    attention=cast(Attention, limited(attention, OPTIONS, attention)),
    features=frozenset(
        {
            *(Feature.CAUSAL, Feature.GQA, Feature.WINDOW, Feature.SOFTCAP),
            *(Feature.ALIBI, Feature.LSE, Feature.DROPOUT, Feature.BACKWARD),
        }
    ),
    dtypes=(torch.float16, torch.bfloat16),
    devices=("cuda",),
    supports=supports,
    unavailable=lambda: missing("flash_attn") or no_device(),
    profile=PROFILE,
)
