"""PyTorch's `torch.nn.functional.rms_norm`."""

import torch

from attnspec.spec.rms_norm import RMSNormImplementation

IMPLEMENTATION = RMSNormImplementation(name="torch_rms_norm", function=torch.nn.functional.rms_norm)
