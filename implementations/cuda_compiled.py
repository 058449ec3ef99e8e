"""`torch.compile` of the attention written by hand in `compiled`, for a CUDA device."""

import importlib.util
from typing import cast

import torch

from attnspec.implementations.compiled import UNCOUNTED, Compiled
from attnspec.implementations.cuda import no_device
from attnspec.spec import Attention, Feature, Implementation, MaskedNonfinite, Profile


def unavailable() -> str | None:
    """Return the reason why nothing can be compiled for a CUDA device here, or None."""
    if importlib.util.find_spec("triton") is None:
        return no_device() or "triton is not installed"
    return no_device()


_CUDA = Compiled()

IMPLEMENTATION = Implementation(
    name="cuda_compiled",
    attention=cast(Attention, _CUDA),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.BACKWARD, Feature.VALIDATES}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    devices=("cuda",),
    unavailable=unavailable,
    profile=Profile(masked_values=MaskedNonfinite.PROPAGATES),
    deviations=(UNCOUNTED,),
    counters=_CUDA.counters,
)
