"""Helpers that the implementations for CUDA devices share."""

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
