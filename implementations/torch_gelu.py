"""PyTorch's `torch.nn.functional.gelu` in its exact form."""

import torch

from attnspec.spec.gelu import GELUImplementation

IMPLEMENTATION = GELUImplementation(name="torch_gelu", function=torch.nn.functional.gelu)
