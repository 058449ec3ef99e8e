"""torch's `varlen_attn`, on a CUDA device.

The claims follow its documentation; they have not been tried on a device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from attnspec.implementations.cuda import ACCUMULATOR, no_device, on_cuda, vector_widths
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
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def packed(*operands: Any, **options: Any) -> Any:
    """Import the library on the first call, and call its function on the device."""
    return on_cuda(_adapted())(*operands, **options)


IMPLEMENTATION = PackedImplementation(
    name="packed_varlen",
    function=packed,
    features=frozenset({"causal", "window", "gqa", "lse"}),
    dtypes=(torch.float16, torch.bfloat16),
    has_gradients=True,
    supports=vector_widths,
    unavailable=no_device,
    profile=PackedProfile(
        empty_sequences=EmptySequences.UNDEFINED,  # not documented
        outside_rows=OutsideRows.UNDEFINED,
        neighbours=MaskedNonfinite.PROPAGATES,
        index_type=IndexType.INT32,
        accumulator=ACCUMULATOR,
    ),
)
