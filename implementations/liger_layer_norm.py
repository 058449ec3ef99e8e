"""Liger's LayerNorm, which keeps its statistics in float32."""

from attnspec.implementations.cuda import on_cuda
from attnspec.implementations.liger import DTYPES, layer_norm, unavailable
from attnspec.spec.layer_norm import LayerNormImplementation

IMPLEMENTATION = LayerNormImplementation(
    name="liger_layer_norm",
    function=on_cuda(layer_norm),
    dtypes=DTYPES,
    unavailable=unavailable,
)
