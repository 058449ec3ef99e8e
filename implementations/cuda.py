"""Helpers that the implementations for CUDA devices share."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.spec import Case
from attnspec.spec.packed import EVERYWHERE

ACCUMULATOR = 2.0**-22
"""Unit roundoff of sums in tensor cores: their adders truncate (Fasi et al. 2021), with margin."""


def no_device() -> str | None:
    """Return the reason why nothing can run on a CUDA device here, or None."""
    return None if torch.cuda.is_available() else "no CUDA device"


def undocumented_rows(case: Any) -> str | None:
    """Return the reason why a packed or paged case is refused, if it may have rows without keys.

    The libraries do not say what they give there.
    """
    is_hiding = case.window != EVERYWHERE
    if is_hiding and any(n > m for n, m in zip(case.queries, case.keys, strict=True)):
        return "a row without keys is not documented"
    return None


def vector_widths(case: Any) -> str | None:
    """Return the reason why a packed or paged case is refused, if its heads have other widths.

    FlashAttention's kernels load eight channels at once, of 256 at most.
    """
    if case.d_head % 8 or case.d_head > 256:
        return "the function needs d_head to be a multiple of 8 up to 256"
    return undocumented_rows(case)


def empty(case: Case) -> bool:
    """Return whether a tensor of the case has no elements."""
    lengths = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    return min(lengths) == 0


def on_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let an operator run on a CUDA device: tensors are moved there and back.

    Pools of pages, into which the function may write, are copied back.
    """

    def moved(*operands: Any, **options: Any) -> Any:
        there = [_to(each, "cuda") for each in operands]
        options = {name: _to(each, "cuda") for name, each in options.items()}
        result = function(*there, **options)
        for before, after in zip(operands[1:3], there[1:3], strict=True):
            if isinstance(before, torch.Tensor) and before.dim() == 4:
                before.copy_(after)
        if isinstance(result, tuple):
            return tuple(_to(each, "cpu") for each in result)
        return _to(result, "cpu")

    return moved


def _to(x: Any, device: str) -> Any:
    return x.to(device) if isinstance(x, torch.Tensor) else x
