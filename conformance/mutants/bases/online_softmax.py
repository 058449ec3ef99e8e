"""A correct online softmax by tiles, and a correct merge, whose steps mutants replace."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.online_softmax import (
    LogBase,
    OnlineSoftmaxImplementation,
    OnlineSoftmaxProfile,
    SoftmaxMergeImplementation,
    SoftmaxMergeProfile,
)


class PlainOnlineSoftmax:
    """An online softmax by tiles, which computes in float32 or wider."""

    tile = 8
    profile = OnlineSoftmaxProfile()

    def __call__(self, scores: torch.Tensor, values: torch.Tensor) -> Any:
        """Return output and log-sum-exp."""
        wide = self.wide(scores.dtype)
        result = _WithBackward.apply(scores.to(wide), values.to(wide), self)  # type: ignore[no-untyped-call]
        return result[0].to(scores.dtype), result[1].to(max(wide, torch.float32, key=_bits))

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which sums are kept."""
        return torch.float64 if dtype == torch.float64 else torch.float32

    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return output and log-sum-exp, tile by tile."""
        running = self.first(scores, values)
        for start in range(0, scores.shape[-1], self.tile):
            keys = slice(start, start + self.tile)
            running = self.absorb(running, scores[:, keys], values[keys])
        return self.finish(*running)

    def first(self, scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return maximum, sum and output before the first tile."""
        peak = torch.full_like(scores[:, :1], -torch.inf)
        out = torch.zeros(len(scores), values.shape[-1], dtype=values.dtype)
        return peak, torch.zeros_like(peak), out

    def absorb(
        self, running: tuple[torch.Tensor, ...], scores: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return maximum, sum and output after a tile."""
        peak, total, out = running
        higher = self.grow(peak, scores)
        shift = self.shift(higher)
        masses = (scores - shift).exp()
        shrink = (peak - shift).exp()
        total = self.shrunk(total, shrink) + self.sum(masses)
        return higher, total, self.shrunk_out(out, shrink) + masses @ values

    def grow(self, peak: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the maximum after a tile."""
        return torch.maximum(peak, scores.amax(-1, keepdim=True))

    def shift(self, peak: torch.Tensor) -> torch.Tensor:
        """Return the number that is subtracted from the scores."""
        return torch.where(peak == -torch.inf, 0.0, peak)

    def shrunk(self, total: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        """Return the sum relative to the new maximum."""
        return shrink * total

    def shrunk_out(self, out: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
        """Return the output relative to the new maximum."""
        return shrink * out

    def sum(self, masses: torch.Tensor) -> torch.Tensor:
        """Return the sum of the exponentials of a tile."""
        return masses.sum(-1, keepdim=True)

    def finish(
        self, peak: torch.Tensor, total: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return output and log-sum-exp of the running numbers."""
        divisor = torch.where(total == 0, 1.0, total)
        lse = torch.where(total == 0, -torch.inf, self.shift(peak) + divisor.log())[:, 0]
        return out / divisor, lse / self.profile.base.unit

    def backward(
        self,
        scores: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        grad_out: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of scores and values, from the natural log-sum-exp."""
        weights = (scores - torch.where(lse == -torch.inf, 0.0, lse)[:, None]).exp()
        of_row = (grad_out * out).sum(-1, keepdim=True)
        return weights * (grad_out @ values.mT - of_row), weights.mT @ grad_out


def _bits(dtype: torch.dtype) -> int:
    return torch.finfo(dtype).bits


class _WithBackward(torch.autograd.Function):
    """The two passes of an online softmax."""

    @staticmethod
    def forward(ctx: Any, scores: Any, values: Any, function: PlainOnlineSoftmax) -> Any:
        out, lse = function.forward(scores, values)
        ctx.function = function
        ctx.save_for_backward(scores, values, out, lse * function.profile.base.unit)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return *ctx.function.backward(*ctx.saved_tensors, grads[0]), None


class PlainMerge:
    """A merge in torch's own operations, which computes in the type of the log-sum-exps."""

    profile = SoftmaxMergeProfile()

    def __call__(
        self,
        out_a: torch.Tensor,
        lse_a: torch.Tensor,
        out_b: torch.Tensor,
        lse_b: torch.Tensor,
    ) -> Any:
        """Return output and log-sum-exp of both parts."""
        unit = self.profile.base.unit
        first, second = lse_a * unit, lse_b * unit
        shift = self.shift(first, second)
        a, b = (first - shift).exp(), (second - shift).exp()
        total = a + b
        divisor = self.divisor(total)
        share_a, share_b = self.shares(a, b, divisor)
        out = share_a[..., None] * out_a + share_b[..., None] * out_b
        return out.to(out_a.dtype), self.log(total, divisor, shift) / unit

    def shift(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the number that is subtracted from both log-sum-exps."""
        larger = torch.maximum(first, second)
        return torch.where(larger == -torch.inf, 0.0, larger)

    def divisor(self, total: torch.Tensor) -> torch.Tensor:
        """Return the sum of the exponentials, or one if both parts are empty."""
        return torch.where(total == 0, 1.0, total)

    def shares(
        self, a: torch.Tensor, b: torch.Tensor, divisor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights of both parts."""
        return a / divisor, b / divisor

    def log(self, total: torch.Tensor, divisor: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return the natural log-sum-exp of both parts."""
        return torch.where(total == 0, -torch.inf, shift + divisor.log())


def correct_softmax(
    name: str = "correct",
    profile: OnlineSoftmaxProfile | None = None,
    base: type[PlainOnlineSoftmax] = PlainOnlineSoftmax,
) -> OnlineSoftmaxImplementation:
    """Return the declaration of an online softmax under a profile."""
    function = base()
    function.profile = profile or OnlineSoftmaxProfile()
    return OnlineSoftmaxImplementation(name=name, function=function, profile=function.profile)


def correct_merge(
    name: str = "correct", log: LogBase = LogBase.E, base: type[PlainMerge] = PlainMerge
) -> SoftmaxMergeImplementation:
    """Return the declaration of a merge of a base."""
    function = base()
    function.profile = SoftmaxMergeProfile(base=log)
    return SoftmaxMergeImplementation(
        name=name, function=function, profile=function.profile, has_gradients=False
    )


def softmax_mistake(
    identifier: str, title: str, *, killed_by: str, source: str = ""
) -> Callable[[Any], Any]:
    """Plant a class of online softmaxes as a mutant."""

    def register(base: type[PlainOnlineSoftmax]) -> type[PlainOnlineSoftmax]:
        subject = correct_softmax(identifier, base=base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register


def merge_mistake(
    identifier: str, title: str, *, killed_by: str, source: str = "", log: LogBase = LogBase.E
) -> Callable[[Any], Any]:
    """Plant a class of merges as a mutant, declared with a base of the logarithm."""

    def register(base: type[PlainMerge]) -> type[PlainMerge]:
        subject = correct_merge(identifier, log, base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
