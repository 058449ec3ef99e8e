"""transformers' eager attention, as its Llama calls it."""

from typing import cast

import torch

from attnspec.implementations.transformers_attention import (
    EAGER_DEVIATIONS,
    as_model_calls,
    float32_supports,
    unavailable,
)
from attnspec.spec import (
    Attention,
    CausalAlignment,
    EmptyRow,
    Feature,
    Float64Precision,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

ATTENTION = as_model_calls(
    "llama", "eager", names=("attn_mask", "is_causal", "scale", "dropout_p", "enable_gqa")
)

IMPLEMENTATION = Implementation(
    name="llama_eager",
    attention=cast(Attention, ATTENTION),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.DROPOUT, Feature.BACKWARD, Feature.GQA}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=float32_supports,
    unavailable=unavailable,
    # A model hides a key by the most negative number, so a query that reads none reads all of them.
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        empty_row=EmptyRow.MEAN,
        empty_row_float_mask=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        float64_precision=Float64Precision.FLOAT32,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    deviations=EAGER_DEVIATIONS,
)
