"""transformers' flex attention, as its Llama calls it."""

from typing import cast

import torch

from attnspec.implementations.transformers_attention import as_model_calls, supports, unavailable
from attnspec.spec import Attention, CausalAlignment, Feature, Implementation, Profile

ATTENTION = as_model_calls(
    "llama", "flex_attention", names=("attn_mask", "is_causal", "scale", "softcap", "enable_gqa")
)

IMPLEMENTATION = Implementation(
    name="llama_flex",
    attention=cast(Attention, ATTENTION),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.SOFTCAP, Feature.GQA}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=unavailable,
    profile=Profile(causal_alignment=CausalAlignment.LOWER_RIGHT),
)
