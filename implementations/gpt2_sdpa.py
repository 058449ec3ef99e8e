"""transformers' sdpa attention, as its GPT-2 calls it."""

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

ATTENTION = as_model_calls("gpt2", "sdpa", names=("attn_mask", "is_causal", "scale", "dropout_p"))

IMPLEMENTATION = Implementation(
    name="gpt2_sdpa",
    attention=cast(Attention, ATTENTION),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.DROPOUT, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=sdpa_supports,
    unavailable=unavailable,
    profile=SDPA_PROFILE,
    deviations=SDPA_DEVIATIONS,
)
