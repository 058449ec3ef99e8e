"""`torch.compile` of a hand-written rotary embedding that pairs halves."""

import torch

from attnspec.implementations.compiled import unavailable
from attnspec.implementations.compiled_operators import rotary
from attnspec.spec.rotary import RotaryImplementation

IMPLEMENTATION = RotaryImplementation(
    name="compiled_rotary",
    function=rotary,
    features=frozenset({"base"}),
    dtypes=(torch.float32, torch.bfloat16),
    unavailable=unavailable,
)
