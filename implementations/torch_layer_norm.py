"""PyTorch's `torch.nn.functional.layer_norm`, whose CPU kernel keeps 16-bit statistics."""

import torch

from attnspec.spec.layer_norm import LayerNormImplementation, LayerNormProfile, Saved

IMPLEMENTATION = LayerNormImplementation(
    name="torch_layer_norm",
    function=torch.nn.functional.layer_norm,
    profile=LayerNormProfile(saved=Saved.STORAGE),
)
