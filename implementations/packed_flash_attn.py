"""FlashAttention 2: `flash_attn.flash_attn_varlen_func`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from attnspec.implementations.adapters.packed_flash_attn import packed_from_flash_attn_varlen_func
from attnspec.implementations.cuda import ACCUMULATOR, no_device, on_cuda, undocumented_rows
from attnspec.implementations.frameworks import missing
from attnspec.spec.packed import (
    EmptySequences,
    IndexType,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.profiles import MaskedNonfinite


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flash_attn import flash_attn_varlen_func

    return packed_from_flash_attn_varlen_func(flash_attn_varlen_func)


def packed(*operands: Any, **options: Any) -> Any:
    """Import the library on the first call, and call its function on the device."""
    return on_cuda(_adapted())(*operands, **options)


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.d_head > 256:
        return "the function needs d_head <= 256"
    return undocumented_rows(case)


IMPLEMENTATION = PackedImplementation(
    name="packed_flash_attn",
    function=packed,
    features=frozenset({"causal", "window", "gqa", "lse", "softcap", "alibi"}),
    dtypes=(torch.float16, torch.bfloat16),
    has_gradients=True,
    supports=supports,
    unavailable=lambda: missing("flash_attn") or no_device(),
    profile=PackedProfile(
        empty_sequences=EmptySequences.UNDEFINED,  # not documented
        outside_rows=OutsideRows.UNDEFINED,
        neighbours=MaskedNonfinite.PROPAGATES,
        index_type=IndexType.INT32,
        accumulator=ACCUMULATOR,
    ),
)
