"""Mutants of packed attention that round the outputs of parts of the keys, and do not say so."""

import torch

from attnspec.conformance.mutants.bases.packed import PlainPacked, packed_mistake
from attnspec.conformance.mutants.bases.parts import InParts

ROUNDED = "outputs-of-parts-are-rounded-as-often-as-declared"


@packed_mistake(
    "own-packed-running-output",
    "the output is stored in 16 bits after each 16 keys, although no rounding is declared",
    killed_by=ROUNDED,
)
class RunningOutput(InParts):
    pass


@packed_mistake(
    "own-packed-sum-in-16-bits",
    "the products of weights and values are added in the storage type, key by key",
    killed_by=ROUNDED,
)
class SumInStorage(PlainPacked):
    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = super().mix(weights, value)
        if out.dtype not in (torch.float16, torch.bfloat16):
            return out
        total = torch.zeros_like(out)
        for j in range(value.shape[1]):
            total = total + weights[..., j : j + 1] * value[:, j : j + 1]
        return total
