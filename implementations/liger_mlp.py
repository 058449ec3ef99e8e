"""Liger's SwiGLU between two maps of torch."""

from attnspec.implementations.cuda import on_cuda
from attnspec.implementations.liger import DTYPES, gated_mlp, unavailable
from attnspec.spec.gated_mlp import GatedMLPImplementation

IMPLEMENTATION = GatedMLPImplementation(
    name="liger_mlp",
    function=on_cuda(gated_mlp),
    dtypes=DTYPES,
    unavailable=unavailable,
)
