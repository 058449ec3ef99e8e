"""FlashAttention 3: `flash_attn_interface.flash_attn_func`, on a CUDA device of type Hopper.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float

from attnspec.implementations.adapters.flash_attn_func import from_flash_attn_func
from attnspec.implementations.adapters.parameters import limited
from attnspec.implementations.cuda import no_device
from attnspec.implementations.flash_attn_2 import PROFILE, constant_lse, supports
from attnspec.implementations.frameworks import missing
from attnspec.spec import Attention, Feature, Implementation

OPTIONS = ("is_causal", "scale", "enable_gqa", "window", "softcap", "return_lse")
"""The options of the contract that the function has."""


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flash_attn_interface import flash_attn_func

    return from_flash_attn_func(flash_attn_func)


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_head"],
    **options: Any,
) -> Any:
    """Import FlashAttention on the first call, and call its function."""
    return constant_lse(_adapted()(query, key, value, **options))


IMPLEMENTATION = Implementation(
    name="flash_attn_3",
    attention=cast(Attention, limited(attention, OPTIONS, attention)),
    features=frozenset(
        {
            *(Feature.CAUSAL, Feature.GQA, Feature.WINDOW, Feature.SOFTCAP),
            *(Feature.LSE, Feature.BACKWARD),
        }
    ),
    dtypes=(torch.float16, torch.bfloat16),
    devices=("cuda",),
    supports=supports,
    unavailable=lambda: missing("flash_attn_interface") or no_device(),
    profile=PROFILE,
)
