"""FlashAttention 2: `flash_attn.flash_attn_with_kvcache`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from attnspec.implementations.adapters.packed_flash_attn import paged_from_flash_attn_with_kvcache
from attnspec.implementations.cuda import ACCUMULATOR, no_device, on_cuda, vector_widths
from attnspec.implementations.frameworks import missing
from attnspec.spec.packed import EmptySequences, IndexType, OutsideRows
from attnspec.spec.paged import PagedImplementation, PagedProfile
from attnspec.spec.profiles import MaskedNonfinite


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flash_attn import flash_attn_with_kvcache

    return paged_from_flash_attn_with_kvcache(flash_attn_with_kvcache)


def paged(*operands: Any, **options: Any) -> Any:
    """Import the library on the first call, and call its function on the device."""
    return on_cuda(_adapted())(*operands, **options)


IMPLEMENTATION = PagedImplementation(
    name="paged_flash_attn",
    function=paged,
    features=frozenset({"causal", "window", "gqa", "lse", "softcap", "alibi", "append"}),
    dtypes=(torch.float16, torch.bfloat16),
    has_gradients=False,
    supports=vector_widths,
    unavailable=lambda: missing("flash_attn") or no_device(),
    profile=PagedProfile(
        empty_sequences=EmptySequences.UNDEFINED,  # not documented
        outside_rows=OutsideRows.ZERO,
        neighbours=MaskedNonfinite.PROPAGATES,
        unwritten=MaskedNonfinite.PROPAGATES,
        index_type=IndexType.INT32,
        accumulator=ACCUMULATOR,
    ),
    page_sizes=(256,),
)
