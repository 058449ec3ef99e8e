"""transformers' sdpa attention, as its GPT-2 calls it."""

from typing import cast

import torch

from attnspec.implementations.transformers_attention import as_model_calls, supports, unavailable
from attnspec.spec import Attention, CausalAlignment, Feature, Implementation, Profile

ATTENTION = as_model_calls("gpt2", "sdpa", names=("attn_mask", "is_causal", "scale", "dropout_p"))

IMPLEMENTATION = Implementation(
    name="gpt2_sdpa",
    attention=cast(Attention, ATTENTION),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.DROPOUT, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    unavailable=unavailable,
    profile=Profile(causal_alignment=CausalAlignment.LOWER_RIGHT),
)
