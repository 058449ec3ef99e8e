"""A correct GELU whose steps mutants replace."""

import math
from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.gelu import Approximate, GELUImplementation, GELUProfile


class PlainGELU:
    """A GELU in torch's own operations, which computes in float32 or wider."""

    profile = GELUProfile()

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        """Return the function of each element."""
        self.dtype = input.dtype
        wide = input if input.dtype == torch.float64 else input.float()
        return self.of(wide).to(input.dtype)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function in the type that it is computed in."""
        return 0.5 * x * (1 + self.odd(x))

    def odd(self, x: torch.Tensor) -> torch.Tensor:
        """Return erf of x / √2, or the tanh that approximates it."""
        if self.profile.approximate is Approximate.NONE:
            return torch.erf(x / math.sqrt(2))
        return torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def correct(
    name: str = "correct",
    profile: GELUProfile | None = None,
    base: type[PlainGELU] = PlainGELU,
) -> GELUImplementation:
    """Return the declaration of a GELU under a profile."""
    function = base()
    function.profile = profile or GELUProfile()
    return GELUImplementation(name=name, function=function, profile=function.profile)


def gelu_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    approximate: Approximate = Approximate.NONE,
    source: str = "",
) -> Callable[[Any], Any]:
    """Plant a class as a mutant that declares this form."""

    def register(base: type[PlainGELU]) -> type[PlainGELU]:
        subject = correct(identifier, GELUProfile(approximate=approximate), base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
