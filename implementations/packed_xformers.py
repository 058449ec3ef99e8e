"""xFormers' `memory_efficient_attention` with a bias of blocks, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from attnspec.implementations.adapters.packed_block_diagonal import packed_from_block_diagonal
from attnspec.implementations.cuda import ACCUMULATOR, no_device, on_cuda, undocumented_rows
from attnspec.implementations.frameworks import missing
from attnspec.spec.packed import EmptySequences, OutsideRows, PackedImplementation, PackedProfile
from attnspec.spec.profiles import MaskedNonfinite


@functools.cache
def _adapted() -> Callable[..., Any]:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    return packed_from_block_diagonal(memory_efficient_attention, BlockDiagonalMask)


def packed(*operands: Any, **options: Any) -> Any:
    """Import the library on the first call, and call its function on the device."""
    return on_cuda(_adapted())(*operands, **options)


def supports(case: Any) -> str | None:
    """Return the reason why the function refuses a case, or None."""
    if case.d_head % 8:
        return "memory_efficient_attention needs d_head to be a multiple of 8"
    if case.window[1] > 0 or (case.window[1] == -1 and case.window[0] != -1):
        return "the biases have causal windows alone"
    return undocumented_rows(case)


IMPLEMENTATION = PackedImplementation(
    name="packed_xformers",
    function=packed,
    features=frozenset({"causal", "window", "gqa"}),
    dtypes=(torch.float16, torch.bfloat16),
    has_gradients=True,
    supports=supports,
    unavailable=lambda: missing("xformers") or no_device(),
    profile=PackedProfile(
        empty_sequences=EmptySequences.UNDEFINED,  # not documented
        outside_rows=OutsideRows.ZERO,
        neighbours=MaskedNonfinite.PROPAGATES,
        accumulator=ACCUMULATOR,
    ),
)
