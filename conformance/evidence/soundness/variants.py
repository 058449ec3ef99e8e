"""Variants: correct implementations of attention, which the error bound must never reject.

Each variant computes the contract in its own order, and rounds only where its declared level allows
it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.subject import WRT
from attnspec.conformance.evidence.soundness import dense
from attnspec.conformance.evidence.soundness.tiles import Fused, truncated
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.spec import Rounding, RoundingLevel

Results = dict[str, torch.Tensor]
"""`out` and optionally `lse`; with gradients `query`, `key`, `value` and optionally `attn_mask`."""

Run = Callable[[Call, torch.Tensor | None], Results]


def every_call(call: Call) -> bool:
    """Return true for every call."""
    return True


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A correct implementation and its declaration.

    Attributes:
        name: describes the computation.
        run: `run(call, grad)` returns `out` and optionally `lse`; with `grad` also the gradients
            `query`, `key`, `value` and, for a float mask, optionally `attn_mask`.
        rounding: its declared rounding.
        takes: returns false for calls that it cannot compute.
    """

    name: str
    run: Run
    rounding: Rounding = field(default_factory=Rounding)
    takes: Callable[[Call], bool] = every_call


def differentiable(forward: Callable[[Call], Results], *operands: str) -> Run:
    """Return a function that computes a call, and gradients of float operands by autograd."""

    def run(call: Call, grad: torch.Tensor | None) -> Results:
        leaves = {
            name: tensor.detach().clone().requires_grad_(grad is not None)
            for name, tensor in call.tensors.items()
            if name in operands and tensor.is_floating_point()
        }
        results = forward(call.but(**leaves))
        if grad is not None:
            gradients = torch.autograd.grad(results["out"], list(leaves.values()), grad)
            results |= dict(zip(leaves, gradients, strict=True))
        return {name: tensor.detach() for name, tensor in results.items()}

    return run


def attention(steps: Dense) -> Run:
    """Return the run of an attention, with the gradients of its own formulae or autograd's."""

    def forward(call: Call) -> Results:
        out, lse = steps(call.query, call.key, call.value, **call.but(return_lse=True).keywords())
        return {"out": out, "lse": lse}

    return differentiable(forward, *WRT, "attn_mask")


def library(backend: SDPBackend) -> Run:
    """Return the run of PyTorch's own function, restricted to one of its kernels."""

    def forward(call: Call) -> Results:
        mask, is_causal = call.attn_mask, call.is_causal
        # with the causal flag PyTorch refuses a mask, and mishandles a scale of zero or less
        if is_causal and (mask is not None or (call.scale is not None and call.scale <= 0)):
            visible, is_causal = Dense().causal(call.query.shape[2], call.key.shape[2]), False
            if mask is None or mask.dtype == torch.bool:
                mask = visible if mask is None else visible & mask
            else:
                mask = mask.masked_fill(~visible, -math.inf)
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                call.query,
                call.key,
                call.value,
                attn_mask=mask,
                is_causal=is_causal,
                scale=call.scale,
                enable_gqa=call.enable_gqa,
            )
        return {"out": out}

    return differentiable(forward, *WRT)


def is_plain(call: Call) -> bool:
    """Return true if the call uses only options that PyTorch's function has."""
    extras = (call.window, call.softcap, call.sinks, call.alibi_slopes)
    return (
        all(option is None for option in extras) and min(call.query.shape[2], call.key.shape[2]) > 0
    )


def flash_takes(call: Call) -> bool:
    """Return true if PyTorch's flash kernel accepts the call."""
    same = call.query.shape[-1] == call.value.shape[-1]
    mask = call.attn_mask is None or call.attn_mask.ndim != 3
    return is_plain(call) and same and mask and not call.enable_gqa


def flash_writes(queries: int, keys: int, group: int) -> tuple[int, int]:
    """Return how often PyTorch's CPU kernel writes back: key tiles, and blocks of 32 queries."""
    return math.ceil(keys / 32) + 1, math.ceil(queries / 32) * group + 1


def rows_of_16(queries: int, keys: int, group: int) -> tuple[int, int]:
    """Return how often a kernel that processes 16 queries at a time writes dK and dV back.

    The last sum is written before it is scaled, and the scaled sum is written once more.
    """
    return 1, math.ceil(queries / 16) + 1


VARIANTS = (
    Variant(name="dense, wide inside", run=attention(dense.LibrarySoftmax())),
    Variant(
        name="dense, wide inside, keys shuffled, roots of the scale",
        run=attention(dense.ShuffledKeys()),
    ),
    Variant(name="library, math kernel", run=library(SDPBackend.MATH), takes=is_plain),
    Variant(
        name="library, flash kernel",
        run=library(SDPBackend.FLASH_ATTENTION),
        rounding=Rounding(partial_writes=flash_writes),
        takes=flash_takes,
    ),
    Variant(name="tiles of 64", run=attention(Fused())),
    Variant(
        name="tiles of 16, last first, base 2, sink last",
        run=attention(Fused(tile=16, backwards=True, base2=True, scaled="query", sink_last=True)),
    ),
    Variant(
        name="one key at a time",
        run=attention(Fused(tile=1)),
        takes=lambda call: call.key.shape[2] <= 48,
    ),
    Variant(
        name="tiles of 16 in 4 splits, heads of a group rounded",
        run=attention(Fused(tile=16, splits=4, group_rounded=True)),
    ),
    Variant(
        name="tiles of 4 in 5 splits, merged by the rounded log-sum-exp, mask rounded",
        run=attention(
            Fused(tile=4, splits=5, shares_of_lse=True, sink_last=True, mask_rounded=True)
        ),
    ),
    Variant(
        name="tiles of 32, weights stay wide, roots of the scale",
        run=attention(Fused(tile=32, weights_stay_wide=True, scaled="root", sink_last=True)),
    ),
    Variant(
        name="tiles of 16, maximum followed lazily, base 2",
        run=attention(Fused(tile=16, lazy=5.5, base2=True)),
    ),
    Variant(
        name="tiles of 32, gradients written every 16 queries",
        run=attention(Fused(tile=32, row_block=16)),
        rounding=Rounding(partial_writes=rows_of_16),
    ),
    Variant(
        name="tiles of 32, scaled queries stored",
        run=attention(Fused(tile=32, scaled="stored")),
        rounding=Rounding(level=RoundingLevel.PRESCALED),
    ),
    Variant(
        name="tiles of 32, sum of rounded weights",
        run=attention(Fused(tile=32, sum_rounded=True)),
        rounding=Rounding(level=RoundingLevel.ROWSUM),
    ),
    Variant(
        name="tiles of 32, truncating adder",
        run=attention(Fused(tile=32, product=truncated)),
        rounding=Rounding(accumulator=2.0**-23),
        takes=lambda call: call.value.dtype != torch.float64,
    ),
    Variant(
        name="dense in the storage type",
        run=attention(dense.NarrowLibrarySoftmax()),
        rounding=Rounding(level=RoundingLevel.EAGER),
    ),
    Variant(
        name="dense in the storage type, softmax by hand",
        run=attention(dense.NarrowScaledQuery()),
        rounding=Rounding(level=RoundingLevel.EAGER),
        takes=lambda call: call.value.dtype in (torch.float16, torch.bfloat16),
    ),
)
"""Every variant with its declaration."""
