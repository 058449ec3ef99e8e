"""PyTorch's `torch.nn.functional.gelu` in its tanh form, GPT-2's."""

import functools

import torch

from attnspec.spec.gelu import Approximate, GELUImplementation, GELUProfile

IMPLEMENTATION = GELUImplementation(
    name="torch_gelu_tanh",
    function=functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    profile=GELUProfile(approximate=Approximate.TANH),
)
