"""torch's `scaled_dot_product_attention` on a CUDA device, cuDNN kernel."""

from typing import cast

import torch
from jaxtyping import Bool, Float
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnspec.implementations.cuda import ACCUMULATOR, empty, no_device
from attnspec.spec import (
    Attention,
    Case,
    Feature,
    Implementation,
    Layout,
    MaskedNonfinite,
    MaskShape,
    Profile,
    Rounding,
)


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
    """Call torch's function with only this kernel enabled."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def supports(case: Case) -> str | None:
    """Return the reason why the kernel refuses a case, or None."""
    if empty(case):
        return "the kernel takes no empty tensor"
    if max(case.d_head, case.d_value) > 128:
        return "the kernel needs d_head and d_value <= 128"
    if case.d_head % 8 or case.d_value % 8:
        return "the kernel needs d_head and d_value to be multiples of 8"
    if case.keys == 1:
        return "the kernel needs at least 2 keys"
    if case.mask is not None and case.is_causal:
        return "a mask together with is_causal is not documented"
    if case.mask is not None and case.mask.shape is MaskShape.RANK_3:
        return "the kernel takes no mask of rank 3"
    layouts = {case.layouts.query, case.layouts.key, case.layouts.value}
    if layouts & {Layout.SLICED, Layout.TRANSPOSED}:
        return "the kernel needs channels next to each other"
    return None


IMPLEMENTATION = Implementation(
    name="cuda_cudnn",
    attention=cast(Attention, attention),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD}),
    dtypes=(torch.float16, torch.bfloat16),
    devices=("cuda",),
    supports=supports,
    unavailable=no_device,
    profile=Profile(
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(accumulator=ACCUMULATOR),
        deterministic=False,  # the backward pass adds to dQ in no fixed order
    ),
)
