"""What the implementations for CUDA devices have in common."""

import torch

from attnspec.spec import Case

ACCUMULATOR = 2.0**-22
"""Unit roundoff of sums in tensor cores: their adders truncate (Fasi et al. 2021), with margin."""


def no_device() -> str | None:
    """Why nothing can run on a CUDA device here, or `None`."""
    return None if torch.cuda.is_available() else "no CUDA device"


def empty(case: Case) -> bool:
    """True where some tensor of the case holds nothing."""
    lengths = (case.batch, case.heads, case.queries, case.keys, case.d_head, case.d_value)
    return min(lengths) == 0
