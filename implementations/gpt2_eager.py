"""transformers' eager attention, as its GPT-2 calls it."""

from typing import cast

import torch

from attnspec.implementations.transformers_attention import (
    EAGER_DEVIATIONS,
    as_model_calls,
    eager_supports,
    unavailable,
)
from attnspec.spec import (
    Attention,
    CausalAlignment,
    EmptyRow,
    Feature,
    Implementation,
    MaskedNonfinite,
    Profile,
    Rounding,
    RoundingLevel,
)

ATTENTION = as_model_calls("gpt2", "eager", names=("attn_mask", "is_causal", "scale", "dropout_p"))

IMPLEMENTATION = Implementation(
    name="gpt2_eager",
    attention=cast(Attention, ATTENTION),
    features=frozenset({Feature.MASK, Feature.CAUSAL, Feature.DROPOUT, Feature.BACKWARD}),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=eager_supports,
    unavailable=unavailable,
    # A model hides a key by the most negative number, so a query that reads none reads all of them.
    profile=Profile(
        causal_alignment=CausalAlignment.LOWER_RIGHT,
        empty_row=EmptyRow.MEAN,
        empty_row_float_mask=EmptyRow.NAN,
        masked_keys=MaskedNonfinite.PROPAGATES,
        masked_values=MaskedNonfinite.PROPAGATES,
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    deviations=EAGER_DEVIATIONS,
)
