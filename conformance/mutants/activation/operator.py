"""Mutants of a GELU that is judged on its own."""

import math

import torch

from attnspec.conformance.mutants.bases.gelu import PlainGELU, gelu_mistake
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at_rows
from attnspec.conformance.mutants.registry import plant
from attnspec.spec.gelu import Approximate, GELUImplementation


@gelu_mistake(
    "own-gelu-tanh-for-erf",
    "the tanh form where the exact one is declared",
    killed_by="the-two-forms-of-gelu-are-told-apart",
)
class TanhForErf(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


@gelu_mistake(
    "own-gelu-erf-for-tanh",
    "the exact form where the tanh form is declared",
    killed_by="the-two-forms-of-gelu-are-told-apart",
    approximate=Approximate.TANH,
)
class ErfForTanh(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x / math.sqrt(2))


@gelu_mistake(
    "own-gelu-quick",
    "x times the logistic function of 1.702 x",
    killed_by="a-gelu-is-of-the-declared-form",
)
class Quick(PlainGELU):
    def of(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


@gelu_mistake(
    "own-gelu-cube",
    "0.44715 for 0.044715",
    killed_by="a-gelu-is-of-the-declared-form",
    approximate=Approximate.TANH,
)
class Cube(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x**3))


@gelu_mistake(
    "own-gelu-even",
    "the function of |x| where x is below -3",
    killed_by="a-gelu-minus-its-mirror-image-is-the-argument",
)
class Even(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return super().odd(torch.where(x < -3, -x, x))


@gelu_mistake(
    "own-gelu-no-limit",
    "the odd part is clamped to 0.999",
    killed_by="a-gelu-tends-to-zero-and-to-its-argument",
)
class NoLimit(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return super().odd(x).clamp(-0.999, 0.999)


@gelu_mistake(
    "own-gelu-steps-in-storage",
    "the odd part is rounded to the storage type",
    killed_by="a-gelu-is-computed-in-float32-or-wider",
)
class StepsInStorage(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return super().odd(x).to(self.dtype).to(x.dtype)


@gelu_mistake(
    "own-gelu-by-memory",
    "elements are read in the order of memory, whatever the strides",
    killed_by="a-gelu-reads-any-shape-by-its-strides",
)
class ByMemory(PlainGELU):
    def of(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() < 2 or x.is_contiguous():
            return super().of(x)
        return super().of(x.mT.reshape(x.shape))


@gelu_mistake(
    "own-gelu-nan-hidden", "a NaN gives zero", killed_by="a-gelu-keeps-a-nan-in-its-element"
)
class NaNHidden(PlainGELU):
    def of(self, x: torch.Tensor) -> torch.Tensor:
        return super().of(x).nan_to_num(0.0)


@gelu_mistake(
    "own-gelu-constant-odd",
    "the backward pass takes the odd part for a constant",
    killed_by="the-gradient-of-a-gelu-equals-the-definition",
)
class ConstantOdd(PlainGELU):
    def odd(self, x: torch.Tensor) -> torch.Tensor:
        return super().odd(x).detach()


plant(
    id="own-gelu-wrong-at-1025",
    title="wrong at 1023 to 1025 channels",
    subject=GELUImplementation(
        name="wrong_at_1025",
        function=wrong_at_rows(PlainGELU(), ("channels", "1023 to 1025")),
    ),
    killed_by="a-gelu-is-right-in-every-two-regimes",
)
