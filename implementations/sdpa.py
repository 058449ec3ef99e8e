"""torch's `scaled_dot_product_attention`, whichever kernel it chooses.

On a CPU that is the flash kernel where that accepts the arguments, else the math kernel.
"""

import torch

from attnspec.spec import (
    Case,
    Deviation,
    Feature,
    Implementation,
    MaskedNonfinite,
    MaskKind,
    MaskShape,
    Profile,
    Rounding,
)

NEGATIVE_SCALE_LAW = "negative-and-zero-scale"
VISIBLE_NAN_LAW = "a-visible-nan-stays-visible"
"""The laws that find the known mistakes of the flash kernel."""

BLOCK_OF_KEYS = 512
"""Keys that the flash kernel takes at once."""


def flash_refuses(case: Case) -> str | None:
    """Why the CPU flash kernel does not take a case, or `None`."""
    if case.dropout_p > 0:
        return "the flash kernel has no dropout"
    if min(case.batch, case.heads, case.queries, case.keys) == 0:
        return None  # answered before a kernel is chosen
    if case.backward and case.mask is not None and case.mask.kind is MaskKind.FLOAT:
        return "the flash kernel has no gradient of a mask"
    if case.d_head != case.d_value:
        return "the flash kernel needs d_value = d_head"
    if case.mask is not None and case.mask.shape is MaskShape.RANK_3:
        return "the flash kernel takes no mask of rank 3"
    return None


def supports(case: Case) -> str | None:
    """Why neither CPU kernel takes a case, or `None`."""
    if case.mask is not None and case.is_causal:
        refused = flash_refuses(case)
        return f"{refused}, the math kernel no mask together with is_causal" if refused else None
    return None


def lanes(dtype: torch.dtype) -> int:
    """How many numbers a vector register of this CPU holds while it computes in a storage type."""
    register = 64 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 32
    return register // (8 if dtype == torch.float64 else 4)


def partial_writes(queries: int, keys: int) -> tuple[int, int]:
    """How often the flash kernel adds to dQ (once per block of keys), dK, dV (of queries)."""
    block_of_queries = 256 if queries >= 768 else 64 if queries >= 192 else 32
    return max(1, -(-keys // BLOCK_OF_KEYS)), max(1, -(-queries // block_of_queries))


def negative_causal(case: Case) -> bool:
    """True where the flash kernel multiplies the causal mask's minus infinity by a scale ≤ 0."""
    hides = case.is_causal and min(case.batch, case.heads, case.queries, case.d_value) > 0 < case.keys - 1
    return hides and case.scale is not None and case.scale <= 0 and flash_refuses(case) is None


def loses_nan(case: Case) -> bool:
    """True where the flash kernel takes the maximum of a row in a loop that passes over NaN."""
    return case.mask is None and 0 < case.keys < lanes(case.dtype) and flash_refuses(case) is None


PROFILE = Profile(
    masked_nonfinite=MaskedNonfinite.PROPAGATES,
    rounding=Rounding(partial_writes=partial_writes),
)
SQUARE = Case(queries=2, keys=2, d_head=1, d_value=1)
DEVIATIONS = (
    Deviation(
        law=NEGATIVE_SCALE_LAW,
        reason="is_causal with scale <= 0 gives NaN (torch 2.13.0 on a CPU)",
        link="docs/findings.md#causal-with-a-negative-scale",
        applies=negative_causal,
        example=SQUARE.but(is_causal=True, scale=-1.0),
    ),
    Deviation(
        law=VISIBLE_NAN_LAW,
        reason="a row whose scores are all NaN gives zeros where there are few keys (torch 2.13.0 on a CPU)",
        link="docs/findings.md#a-query-of-nan-gives-zeros",
        applies=loses_nan,
        example=SQUARE,
    ),
)

IMPLEMENTATION = Implementation(
    name="sdpa",
    attention=torch.nn.functional.scaled_dot_product_attention,
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.DROPOUT, Feature.BACKWARD}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    supports=supports,
    profile=PROFILE,
    deviations=DEVIATIONS,
)
