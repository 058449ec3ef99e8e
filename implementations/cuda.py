"""Helpers that the implementations for CUDA devices share."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.spec import Case

ACCUMULATOR = 2.0**-22
"""Unit roundoff of sums in tensor cores: their adders truncate (Fasi et al. 2021), with margin."""


def no_device() -> str | None:
    """Return the reason why nothing can run on a CUDA device here, or None."""
    return None if torch.cuda.is_available() else "no CUDA device"


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
