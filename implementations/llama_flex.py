"""transformers' flex attention, as its Llama calls it, uncompiled.

`flex_compiled` is the compiled function of torch.
"""

from typing import cast

import torch

from attnspec.implementations.frameworks import uncompiled
from attnspec.implementations.transformers_attention import (
    as_model_calls,
    flex_supports,
    unavailable,
)
from attnspec.spec import (
    Attention,
    CausalAlignment,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
)

ATTENTION = uncompiled(
    as_model_calls(
        "llama",
        "flex_attention",
        names=("attn_mask", "is_causal", "scale", "softcap", "enable_gqa"),
    )
)

IMPLEMENTATION = Implementation(
    name="llama_flex",
    attention=cast(Attention, ATTENTION),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.SOFTCAP, Feature.GQA}),
    dtypes=(torch.float32, torch.float16, torch.bfloat16),
    supports=flex_supports,
    unavailable=unavailable,
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
    ),
)
