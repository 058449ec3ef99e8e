"""A correct RMSNorm whose steps mutants replace."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.rms_norm import Gain, RMSNormImplementation, RMSNormProfile


class PlainRMSNorm:
    """An RMSNorm in torch's own operations, which computes in float32 or wider."""

    profile = RMSNormProfile()

    def __call__(
        self,
        input: torch.Tensor,
        normalized_shape: tuple[int],
        weight: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """Return gain times rows over their root mean square."""
        rows = input if input.dtype == torch.float64 else input.float()
        normalized = self.normalize(rows, eps)
        result: torch.Tensor = self.gained(normalized, weight.to(rows.dtype)).to(input.dtype)
        return result

    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        """Return rows over their root mean square."""
        return rows * torch.rsqrt(self.mean_square(rows) + eps)

    def mean_square(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean square of each row."""
        return rows.square().mean(-1, keepdim=True)

    def gained(self, normalized: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return normalized rows times their gain."""
        return normalized * (1 + weight if self.profile.gain is Gain.ONE_PLUS else weight)


def correct(
    name: str = "correct",
    profile: RMSNormProfile | None = None,
    base: type[PlainRMSNorm] = PlainRMSNorm,
) -> RMSNormImplementation:
    """Return the declaration of an RMSNorm under a profile."""
    function = base()
    function.profile = profile or RMSNormProfile()
    return RMSNormImplementation(name=name, function=function, profile=function.profile)


def rms_norm_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    gain: Gain = Gain.FACTOR,
    source: str = "",
) -> Callable[[Any], Any]:
    """Plant a class as a mutant with this declared gain."""

    def register(base: type[PlainRMSNorm]) -> type[PlainRMSNorm]:
        subject = correct(identifier, RMSNormProfile(gain=gain), base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
