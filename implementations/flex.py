"""torch's `flex_attention` without compilation: a definition in plain tensor operations."""

from typing import cast

import torch
from torch.nn.attention.flex_attention import flex_attention

from attnspec.implementations.adapters.flex_attention import MOST_BLOCK_MASKS, from_flex_attention
from attnspec.implementations.frameworks import uncompiled
from attnspec.spec import (
    Attention,
    Case,
    Feature,
    Implementation,
    MaskedNonfinite,
    MaskKind,
    Profile,
)


def supports(case: Case) -> str | None:
    """Return the reason why uncompiled `flex_attention` refuses a case, or None."""
    if case.keys == 0:
        return "flex_attention takes no call without keys"
    if case.queries == 0 and case.return_lse:
        return "flex_attention returns no log-sum-exp without queries"
    is_bool = case.mask is not None and case.mask.kind is MaskKind.BOOL
    if is_bool and case.batch * case.heads > MOST_BLOCK_MASKS:
        return "a block mask has 128 queries and keys for each head: these take gigabytes"
    if case.d_head == 0 and case.scale is None:
        return "flex_attention divides by d_head for its default scale"
    return None


IMPLEMENTATION = Implementation(
    name="flex",
    attention=cast(Attention, uncompiled(from_flex_attention(flex_attention))),
    features=frozenset(
        {
            *(Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.WINDOW),
            *(Feature.SOFTCAP, Feature.ALIBI, Feature.LSE),
        }
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    profile=Profile(
        masked_keys=MaskedNonfinite.PROPAGATES, masked_values=MaskedNonfinite.PROPAGATES
    ),
)
