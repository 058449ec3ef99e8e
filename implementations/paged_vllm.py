"""vLLM's `unified_attention` in Triton, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from attnspec.implementations.adapters.packed_vllm import paged_from_unified_attention
from attnspec.implementations.cuda import ACCUMULATOR, no_device, on_cuda, undocumented_rows
from attnspec.implementations.frameworks import missing
from attnspec.spec.packed import EmptySequences, IndexType, OutsideRows
from attnspec.spec.paged import PagedImplementation, PagedProfile
from attnspec.spec.profiles import MaskedNonfinite


@functools.cache
def _adapted() -> Callable[..., Any]:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    return paged_from_unified_attention(unified_attention)


def paged(*operands: Any, **options: Any) -> Any:
    """Import the library on the first call, and call its function on the device."""
    return on_cuda(_adapted())(*operands, **options)


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.window[1] != 0 and max(case.queries) > 1:
        return "unified_attention is causal"
    if case.window[1] == -1 and case.window[0] != -1:
        return "the window of unified_attention is causal"
    return undocumented_rows(case)


IMPLEMENTATION = PagedImplementation(
    name="paged_vllm",
    function=paged,
    features=frozenset({"causal", "window", "gqa", "softcap", "sinks", "alibi"}),
    dtypes=(torch.float16, torch.bfloat16),
    has_gradients=False,
    supports=supports,
    unavailable=lambda: missing("vllm") or no_device(),
    profile=PagedProfile(
        empty_sequences=EmptySequences.UNDEFINED,  # not documented
        outside_rows=OutsideRows.ZERO,
        neighbours=MaskedNonfinite.PROPAGATES,
        unwritten=MaskedNonfinite.PROPAGATES,
        index_type=IndexType.INT32,
        accumulator=ACCUMULATOR,
    ),
    page_sizes=(16, 32, 64, 128),
)
