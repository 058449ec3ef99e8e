"""`torch.compile` of a hand-written RMSNorm."""

import torch

from attnspec.implementations.compiled import unavailable
from attnspec.implementations.compiled_operators import rms_norm
from attnspec.spec.rms_norm import RMSNormImplementation

IMPLEMENTATION = RMSNormImplementation(
    name="compiled_rms_norm",
    function=rms_norm,
    dtypes=(torch.float32, torch.bfloat16),
    unavailable=unavailable,
)
