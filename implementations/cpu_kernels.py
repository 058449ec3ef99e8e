"""torch's attention kernels for CPUs: their refusals, their roundings and their known bugs.

Everything here was found by experiment with torch 2.13.0, and tried with 2.11.0.
"""

import torch

from attnspec.spec import (
    Case,
    Deviation,
    Layout,
    Mask,
    MaskedNonfinite,
    MaskKind,
    MaskPattern,
    MaskShape,
    Profile,
    Rounding,
)

NEGATIVE_SCALE_LAW = "negative-and-zero-scale"
VISIBLE_NAN_LAW = "a-visible-nan-stays-visible"
NO_KEYS_LAW = "no-keys-give-zeros-whatever-the-queries"
NO_KEYS_GRADIENT_LAW = "gradients-in-every-two-regimes-equal-the-definition"
MASK_DTYPE_LAW = "a-float-mask-of-another-dtype-is-read-or-refused"
"""The laws that detect the known bugs."""

RETURNS_EARLY = torch.__version__ >= "2.12"
"""True for versions of torch that choose no kernel for calls with an empty tensor; 2.11.0 did."""

BLOCK_OF_KEYS = 512
"""Keys in one block of the flash kernel."""


def flash_refuses(case: Case) -> str | None:
    """Return the reason why the CPU flash kernel does not take a case, or None."""
    if case.dropout_p > 0:
        return "the flash kernel has no dropout"
    if min(case.batch, case.heads, case.queries, case.keys) == 0:
        return None if RETURNS_EARLY else "the flash kernel takes no empty tensor"
    if case.mask_gradient:
        return "the flash kernel has no gradient of a mask"
    if case.d_head != case.d_value:
        return "the flash kernel needs d_value = d_head"
    operands = (
        (case.layouts.query, case.queries),
        (case.layouts.key, case.keys),
        (case.layouts.value, case.keys),
    )
    if any(_apart(layout, length, case.d_head) for layout, length in operands):
        return "the flash kernel needs channels that lie next to each other"
    if case.mask is not None and case.mask.shape is MaskShape.RANK_3:
        return "the flash kernel takes no mask of rank 3"
    return None


def _apart(layout: Layout, length: int, channels: int) -> bool:
    """Return whether a layout gives the last axis a stride other than one."""
    if layout is Layout.TRANSPOSED:
        return length > 1 and channels > 1
    return layout is Layout.SLICED or (layout is Layout.ODD_STRIDES and channels == 1)


def lanes(dtype: torch.dtype) -> int:
    """Return the numbers that a vector register of this CPU holds in computations of a dtype."""
    register = 64 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 32
    return register // (8 if dtype == torch.float64 else 4)


def partial_writes(queries: int, keys: int, group: int) -> tuple[int, int]:
    """Return the writes of the flash kernel to dQ (one per block of keys), and to dK and dV.

    It adds to dK and dV once per block of queries of each query head: of a group of 64 heads, 98 in
    100 elements of dV were those of 64 sums rounded to bfloat16 one after another.
    """
    block_of_queries = 256 if queries >= 768 else 64 if queries >= 192 else 32
    return max(1, -(-keys // BLOCK_OF_KEYS)), max(1, -(-queries // block_of_queries)) * group


def negative_causal(case: Case) -> bool:
    """Return whether the flash kernel multiplies the causal minus infinity by a scale ≤ 0."""
    if case.scale is None or case.scale > 0 or not case.is_causal:
        return False
    hides = min(case.batch, case.heads, case.queries, case.d_value) > 0 and case.keys > 1
    return hides and flash_refuses(case) is None


def loses_nan(case: Case) -> bool:
    """Return whether the flash kernel takes a row's maximum in a loop that skips NaN."""
    return case.mask is None and 0 < case.keys < lanes(case.dtype) and flash_refuses(case) is None


def misreads_mask(case: Case) -> bool:
    """Return whether the flash kernel loads a float32 mask as if it were float64.

    It does so two registers of float64 at a time; it reads the remainder of a row number by
    number, correctly.
    """
    if case.mask is None or case.mask.kind is not MaskKind.FLOAT or case.dtype != torch.float64:
        return False
    reads = min(case.batch, case.heads, case.queries, case.d_value) > 0
    long = case.keys >= 2 * lanes(torch.float64)
    return case.mask.dtype == torch.float32 and reads and long and flash_refuses(case) is None


def sums_queries(case: Case) -> bool:
    """Return whether the result without keys is zero times the sum of all queries.

    The sum may overflow, unless it has one term.
    """
    elements = case.batch * case.heads * case.queries
    return case.keys == 0 and elements * case.d_value > 0 and elements * case.d_head > 1


def sums_gradients(case: Case) -> bool:
    """Return whether a gradient without keys is zero times a sum that may overflow."""
    return case.backward and case.dtype == torch.float16 and sums_queries(case)


PROFILE = Profile(
    # 0 · NaN is NaN: a weight of zero does not block NaN in a value.
    masked_keys=MaskedNonfinite.PROPAGATES,
    masked_values=MaskedNonfinite.PROPAGATES,
    # In 16 bits the kernel uses a fast exponential for the weights, whose relative error is
    # 1.15e-4 at most on 3943 arguments between -5 and 0 (torch 2.13.0): below 2^-13. It is
    # visible in the log-sum-exp that the kernel passes to its backward pass.
    rounding=Rounding(partial_writes=partial_writes, weight_exp_error=2.0**-13 * 2.0**24),
)
SQUARE = Case(queries=2, keys=2, d_head=1, d_value=1)
SUMMED = Deviation(
    law=NO_KEYS_LAW,
    reason=(
        "without keys the output is zero times the sum of all queries, so that one NaN, or a sum "
        "that overflows, makes every row of every batch element NaN (seen in torch 2.12.1 and "
        "2.13.0 on a CPU)"
    ),
    link="docs/findings.md#no-keys",
    applies=sums_queries,
    example=SQUARE.but(keys=0),
)
"""A bug in the code that runs before a kernel is chosen."""
SUMMED_GRADIENT = Deviation(
    law=NO_KEYS_GRADIENT_LAW,
    reason=(
        "without keys the gradient of the queries is zero times the sum of the incoming gradients, "
        "which is NaN if the sum overflows (seen in torch 2.13.0 on a CPU)"
    ),
    link="docs/findings.md#no-keys",
    applies=sums_gradients,
    example=Case(
        batch=2,
        heads=2,
        kv_heads=2,
        queries=128,
        keys=0,
        d_head=64,
        d_value=64,
        dtype=torch.float16,
        backward=True,
        seed=6,  # selects a large incoming gradient, expanded
    ),
)
"""The same bug in the backward pass."""
BEFORE_KERNELS = (SUMMED, SUMMED_GRADIENT) if RETURNS_EARLY else ()

DEVIATIONS = (
    *BEFORE_KERNELS,
    Deviation(
        law=NEGATIVE_SCALE_LAW,
        reason="is_causal with scale <= 0 gives NaN (seen in torch 2.13.0 on a CPU)",
        link="docs/findings.md#causal-with-a-negative-scale",
        applies=negative_causal,
        example=SQUARE.but(is_causal=True, scale=-1.0),
    ),
    Deviation(
        law=VISIBLE_NAN_LAW,
        reason=(
            "a row whose scores are all NaN gives zeros where keys are fewer than the lanes of a "
            "vector register (seen in torch 2.13.0 on a CPU)"
        ),
        link="docs/findings.md#a-query-of-nan-gives-zeros",
        applies=loses_nan,
        example=SQUARE,
    ),
    Deviation(
        law=MASK_DTYPE_LAW,
        reason=(
            "a float32 mask beside float64 queries is loaded as float64 from two vector registers "
            "of keys on (seen in torch 2.13.0 on a CPU)"
        ),
        link="docs/findings.md#mask-of-another-dtype",
        applies=misreads_mask,
        example=SQUARE.but(
            keys=16,
            mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, dtype=torch.float32),
        ),
    ),
)
