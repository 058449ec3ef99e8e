"""`torch.compile` of a hand-written SwiGLU."""

import torch

from attnspec.implementations.compiled import unavailable
from attnspec.implementations.compiled_operators import gated_mlp
from attnspec.spec.gated_mlp import GatedMLPImplementation

IMPLEMENTATION = GatedMLPImplementation(
    name="compiled_gated_mlp",
    function=gated_mlp,
    dtypes=(torch.float32, torch.bfloat16),
    unavailable=unavailable,
)
