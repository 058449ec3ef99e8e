"""torch's `scaled_dot_product_attention`, CPU flash kernel: tiles of queries and keys."""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnspec.implementations.cpu_kernels import DEVIATIONS, PROFILE, flash_refuses
from attnspec.spec import Attention, Case, Extra, Feature, Implementation


def attention(
    query: Float[torch.Tensor, "batch heads queries d_head"],
    key: Float[torch.Tensor, "batch kv_heads keys d_head"],
    value: Float[torch.Tensor, "batch kv_heads keys d_value"],
    attn_mask: Bool[torch.Tensor, "..."] | Float[torch.Tensor, "..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[torch.Tensor, "batch heads queries d_value"]:
    """Call torch's function with only the flash kernel enabled."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def supports(case: Case) -> str | None:
    """Return the reason why the flash kernel refuses a case, or None."""
    return flash_refuses(case)


IMPLEMENTATION = Implementation(
    name="sdpa_flash",
    attention=cast(Attention, attention),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    extras=frozenset({Extra.COMPILE, Extra.VMAP}),
    supports=supports,
    profile=PROFILE,
    deviations=DEVIATIONS,
)
