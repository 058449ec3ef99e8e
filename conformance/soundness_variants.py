"""Correct attention in many ways: what the error bound must never reject.

Each variant computes the contract in its own order and rounds where its declared level lets it,
and nowhere else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.conformance.call import Call
from attnspec.conformance.soundness_dense import Results, dense, hidden, scale_of, wide
from attnspec.conformance.soundness_tiles import Tiled, truncated
from attnspec.spec import Rounding, RoundingLevel

Run = Callable[[Call, torch.Tensor | None], Results]


def anything(call: Call) -> bool:
    """Take every call."""
    return True


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A correct implementation and what it declares.

    Attributes:
        name: says how it computes.
        run: `run(call, grad)` gives `out`, perhaps `lse`, and with `grad` the gradients
            `query`, `key`, `value` and, for a float mask, perhaps `attn_mask`.
        rounding: what it rounds.
        takes: false for calls that it cannot compute.
    """

    name: str
    run: Run
    rounding: Rounding = field(default_factory=Rounding)
    takes: Callable[[Call], bool] = anything


def library(backend: SDPBackend) -> Run:
    """PyTorch's own function, kept to one of its kernels."""

    def run(call: Call, grad: torch.Tensor | None) -> Results:
        leaves = {
            name: getattr(call, name).detach().clone().requires_grad_(grad is not None)
            for name in ("query", "key", "value")
        }
        mask, is_causal = call.attn_mask, call.is_causal
        # a mask beside the causal flag is refused, and a scale of zero or less mistreated
        if is_causal and (mask is not None or scale_of(call) <= 0):
            hides, is_causal = hidden(call), False
            is_bool = mask is None or mask.dtype == torch.bool
            mask = ~hides if mask is None or is_bool else mask.masked_fill(hides, -math.inf)
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                leaves["query"],
                leaves["key"],
                leaves["value"],
                attn_mask=mask,
                is_causal=is_causal,
                scale=call.scale,
                enable_gqa=call.enable_gqa,
            )
        results = {"out": out.detach()}
        if grad is not None:
            found = torch.autograd.grad(out, list(leaves.values()), grad)
            results |= dict(zip(leaves, found, strict=True))
        return results

    return run


def dense_wide(call: Call, grad: torch.Tensor | None) -> Results:
    """All scores at once in the wide type."""
    return dense(call, grad, dtype=wide(call.value.dtype))


def dense_wide_shuffled(call: Call, grad: torch.Tensor | None) -> Results:
    """The same in another order, with the root of the scale on both sides."""
    return dense(call, grad, dtype=wide(call.value.dtype), shuffled=True, scaled="both")


def is_plain(call: Call) -> bool:
    """True where the call asks for nothing that PyTorch's function lacks."""
    extras = (call.window, call.softcap, call.sinks, call.alibi_slopes)
    return all(each is None for each in extras) and min(call.query.shape[2], call.key.shape[2]) > 0


def flash_takes(call: Call) -> bool:
    """True where PyTorch's flash kernel does not refuse."""
    same = call.query.shape[-1] == call.value.shape[-1]
    mask = call.attn_mask is None or call.attn_mask.ndim != 3
    return is_plain(call) and same and mask and not call.enable_gqa


def flash_writes(queries: int, keys: int) -> tuple[int, int]:
    """How often PyTorch's CPU kernel writes gradients back: key tiles, and blocks of 32 queries."""
    return math.ceil(keys / 32) + 1, math.ceil(queries / 32) + 1


def rows_of_16(queries: int, keys: int) -> tuple[int, int]:
    """How often a kernel writes dK and dV back that takes 16 queries at a time.

    The last sum is written before it is scaled, and what is scaled is written once more.
    """
    return 1, math.ceil(queries / 16) + 1


VARIANTS = (
    Variant(name="dense, wide inside", run=dense_wide),
    Variant(name="dense, wide inside, keys shuffled, roots of the scale", run=dense_wide_shuffled),
    Variant(name="library, math kernel", run=library(SDPBackend.MATH), takes=is_plain),
    Variant(
        name="library, flash kernel",
        run=library(SDPBackend.FLASH_ATTENTION),
        rounding=Rounding(partial_writes=flash_writes),
        takes=flash_takes,
    ),
    Variant(name="tiles of 64", run=Tiled()),
    Variant(
        name="tiles of 16, last first, base 2, sink last",
        run=Tiled(block=16, backwards=True, base2=True, scaled="query", sink_last=True),
    ),
    Variant(
        name="one key at a time",
        run=Tiled(block=1),
        takes=lambda call: call.key.shape[2] <= 48,
    ),
    Variant(
        name="tiles of 16 in 4 splits, heads of a group rounded",
        run=Tiled(block=16, splits=4, group_rounded=True),
    ),
    Variant(
        name="tiles of 32, weights stay wide, roots of the scale",
        run=Tiled(block=32, weights_stay_wide=True, scaled="root", sink_last=True),
    ),
    Variant(
        name="tiles of 16, maximum followed lazily, base 2",
        run=Tiled(block=16, lazy=5.5, base2=True),
    ),
    Variant(
        name="tiles of 32, gradients written every 16 queries",
        run=Tiled(block=32, row_block=16),
        rounding=Rounding(partial_writes=rows_of_16),
    ),
    Variant(
        name="tiles of 32, scaled queries stored",
        run=Tiled(block=32, scaled="stored"),
        rounding=Rounding(level=RoundingLevel.PRESCALED),
    ),
    Variant(
        name="tiles of 32, sum of rounded weights",
        run=Tiled(block=32, sum_rounded=True),
        rounding=Rounding(level=RoundingLevel.ROWSUM),
    ),
    Variant(
        name="tiles of 32, truncating adder",
        run=Tiled(block=32, product=truncated),
        rounding=Rounding(accumulator=2.0**-23),
        takes=lambda call: call.value.dtype != torch.float64,
    ),
    Variant(
        name="dense in the storage type", run=dense, rounding=Rounding(level=RoundingLevel.EAGER)
    ),
    Variant(
        name="dense in the storage type, softmax by hand",
        run=partial(dense, scaled="query", by_hand=True),
        rounding=Rounding(level=RoundingLevel.EAGER),
        takes=lambda call: call.value.dtype in (torch.float16, torch.bfloat16),
    ),
)
"""Every variant, with what it declares."""
