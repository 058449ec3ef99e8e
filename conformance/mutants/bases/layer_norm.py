"""A correct LayerNorm whose steps mutants replace."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.layer_norm import LayerNormImplementation, LayerNormProfile


class PlainLayerNorm:
    """A LayerNorm in torch's own operations, which computes in float32 or wider."""

    profile = LayerNormProfile()

    def __call__(
        self,
        input: torch.Tensor,
        normalized_shape: tuple[int],
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """Return normalized rows times gain plus bias."""
        rows = input if input.dtype == torch.float64 else input.float()
        self.dtype = input.dtype
        normalized = self.normalize(rows, eps)
        affine = self.affine(normalized, weight.to(rows.dtype), bias.to(rows.dtype))
        result: torch.Tensor = affine.to(input.dtype)
        return result

    def normalize(self, rows: torch.Tensor, eps: float) -> torch.Tensor:
        """Return rows about their mean over their deviation."""
        centred = rows - self.mean(rows)
        return centred * torch.rsqrt(self.variance(rows, centred) + eps)

    def mean(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean of each row."""
        return rows.mean(-1, keepdim=True)

    def variance(self, rows: torch.Tensor, centred: torch.Tensor) -> torch.Tensor:
        """Return the biased variance of each row."""
        return centred.square().mean(-1, keepdim=True)

    def affine(
        self, normalized: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        """Return normalized rows times gain plus bias."""
        return normalized * weight + bias


class ExplicitLayerNorm(torch.autograd.Function):
    """A correct LayerNorm with a backward pass of its own, which computes in float32 or wider."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, how: Any
    ) -> torch.Tensor:
        """Return the output, and keep mean and reciprocal root."""
        wide = x if x.dtype == torch.float64 else x.float()
        mean = wide.mean(-1, keepdim=True)
        scale = torch.rsqrt((wide - mean).square().mean(-1, keepdim=True) + eps)
        ctx.how = how
        ctx.save_for_backward(x, weight, how.saved(mean, x.dtype), how.saved(scale, x.dtype))
        out = (wide - mean) * scale * weight.to(wide.dtype) + bias.to(wide.dtype)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Return the gradients of rows, gain and bias."""
        x, weight, mean, scale = ctx.saved_tensors
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        grad = grads[0].to(wide)
        y = (x.to(wide) - mean.to(wide)) * scale.to(wide)
        a = grad * weight.to(wide)
        numerator = a - a.mean(-1, keepdim=True) - y * (a * y).mean(-1, keepdim=True)
        of_weight, of_bias = (
            ctx.how.total(each.reshape(-1, x.shape[-1]), x.dtype).to(x.dtype)
            for each in (grad * y, grad)
        )
        return (numerator * scale.to(wide)).to(x.dtype), of_weight, of_bias, None, None


class WithExplicitBackward:
    """A LayerNorm with a backward pass whose steps mutants replace."""

    profile = LayerNormProfile()

    def __call__(
        self,
        input: torch.Tensor,
        normalized_shape: tuple[int],
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """Return normalized rows times gain plus bias."""
        apply: Callable[..., torch.Tensor] = ExplicitLayerNorm.apply
        return apply(input, weight, bias, eps, self)

    def saved(self, statistic: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return mean or reciprocal root as the backward pass reads it."""
        return statistic

    def total(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the sum over rows."""
        return rows.sum(0)


def correct(
    name: str = "correct",
    profile: LayerNormProfile | None = None,
    base: Callable[[], Any] = PlainLayerNorm,
) -> LayerNormImplementation:
    """Return the declaration of a LayerNorm under a profile."""
    function = base()
    function.profile = profile or LayerNormProfile()
    return LayerNormImplementation(name=name, function=function, profile=function.profile)


def layer_norm_mistake(
    identifier: str, title: str, *, killed_by: str, source: str = ""
) -> Callable[[Any], Any]:
    """Plant a class as a mutant."""

    def register(base: Any) -> Any:
        subject = correct(identifier, base=base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register
