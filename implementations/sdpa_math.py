"""torch's `scaled_dot_product_attention`, math kernel: matrix products and softmax in float32."""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnspec.implementations.cpu_kernels import BEFORE_KERNELS
from attnspec.spec import Attention, Case, Extra, Feature, Implementation, MaskedNonfinite, Profile


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
    """Call torch's function with only the math kernel enabled."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def supports(case: Case) -> str | None:
    """Return the reason why the math kernel refuses a case, or None."""
    if case.mask is not None and case.is_causal:
        return "the math kernel takes no mask together with is_causal"
    return None


IMPLEMENTATION = Implementation(
    name="sdpa_math",
    attention=cast(Attention, attention),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.DROPOUT, Feature.BACKWARD}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    extras=frozenset({Extra.COMPILE, Extra.VMAP}),
    supports=supports,
    # 0 · NaN is NaN: a weight of zero does not block NaN in a value.
    profile=Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    ),
    deviations=BEFORE_KERNELS,
)
