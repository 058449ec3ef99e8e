"""FlashInfer's `BatchPrefillWithPagedKVCacheWrapper`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from attnspec.implementations.adapters.packed_flashinfer import paged_from_prefill_wrapper
from attnspec.implementations.cuda import ACCUMULATOR, no_device, on_cuda, undocumented_rows
from attnspec.implementations.frameworks import missing
from attnspec.spec.packed import EmptySequences, IndexType, OutsideRows, RoundedParts
from attnspec.spec.paged import PagedImplementation, PagedProfile
from attnspec.spec.profiles import MaskedNonfinite


@functools.cache
def _adapted() -> Callable[..., Any]:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper, append_paged_kv_cache

    workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device="cuda")
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace)
    return paged_from_prefill_wrapper(wrapper, append=append_paged_kv_cache)


def paged(*operands: Any, **options: Any) -> Any:
    """Import the library on the first call, and call its function on the device."""
    return on_cuda(_adapted())(*operands, **options)


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.d_head not in (64, 128, 256):
        return "the wrapper needs d_head of 64, 128 or 256"
    if case.window[1] > 0 or (case.window[1] == -1 and case.window[0] != -1):
        return "the window of the wrapper is causal"
    return undocumented_rows(case)


IMPLEMENTATION = PagedImplementation(
    name="paged_flashinfer",
    function=paged,
    features=frozenset({"causal", "window", "gqa", "lse", "softcap", "append"}),
    dtypes=(torch.float16, torch.bfloat16),
    has_gradients=False,
    supports=supports,
    unavailable=lambda: missing("flashinfer") or no_device(),
    profile=PagedProfile(
        empty_sequences=EmptySequences.UNDEFINED,  # not documented
        outside_rows=OutsideRows.ZERO,
        neighbours=MaskedNonfinite.PROPAGATES,
        unwritten=MaskedNonfinite.PROPAGATES,
        index_type=IndexType.INT32,
        accumulator=ACCUMULATOR,
        # https://github.com/flashinfer-ai/flashinfer/issues/5107
        partial_outputs=RoundedParts(),
    ),
)
