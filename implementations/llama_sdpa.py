"""transformers' sdpa attention, as its Llama calls it."""

from typing import cast

import torch

from attnspec.implementations.transformers_attention import (
    SDPA_DEVIATIONS,
    SDPA_PROFILE,
    as_model_calls,
    sdpa_supports,
    unavailable,
)
from attnspec.spec import Attention, Feature, Implementation

ATTENTION = as_model_calls(
    "llama", "sdpa", names=("attn_mask", "is_causal", "scale", "dropout_p", "enable_gqa")
)

IMPLEMENTATION = Implementation(
    name="llama_sdpa",
    attention=cast(Attention, ATTENTION),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.DROPOUT, Feature.BACKWARD, Feature.GQA}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=sdpa_supports,
    unavailable=unavailable,
    profile=SDPA_PROFILE,
    deviations=SDPA_DEVIATIONS,
)
