"""Mutants of LayerNorm: wrong mean, variance, epsilon, gain or bias."""

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.gpt2 import (
    OMNIVERSE,
    CompactGPT2,
    Normalizing,
    model_mistake,
)


@model_mistake(
    "MDL-04",
    "LayerNorm divides by the Bessel-corrected deviation",
    killed_by="layer-norm-has-zero-mean-and-biased-unit-variance",
    breaks=("LNM-5",),
    source=OMNIVERSE,
)
class Bessel(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, keepdim=True) + self.config.layer_norm_epsilon
        ).sqrt()


@model_mistake(
    "own-epsilon-outside",
    "LayerNorm adds epsilon to the deviation, outside the root",
    killed_by="layer-norm-scales-with-its-row",
    breaks=("LNM-1", "LNM-5"),
)
class EpsilonOutside(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.std(-1, keepdim=True, correction=0) + self.config.layer_norm_epsilon)


@model_mistake(
    "own-no-epsilon",
    "LayerNorm divides by the deviation alone, without epsilon",
    killed_by="epsilon-is-inside-the-root",
    breaks=("LNM-1", "LNM-4"),
)
class NoEpsilon(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / centred.square().mean(-1, keepdim=True).sqrt()


@model_mistake(
    "own-epsilon-fixed",
    "LayerNorm always uses epsilon 1e-5",
    killed_by="epsilon-is-inside-the-root",
    breaks=("LNM-1", "LNM-4"),
)
class EpsilonFixed(CompactGPT2):
    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


@model_mistake(
    "own-rms-norm",
    "LayerNorm does not subtract the mean",
    killed_by="layer-norm-has-zero-mean-and-biased-unit-variance",
    breaks=("LNM-3", "LNM-5"),
)
class RMSNorm(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        square = x.square().mean(-1, keepdim=True)
        return x * (square + self.config.layer_norm_epsilon).rsqrt()


@model_mistake(
    "own-variance-by-moments",
    "LayerNorm takes the variance as mean square less squared mean",
    killed_by="layer-norm-ignores-a-shift-of-the-row",
)
class Moments(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) - mean.square()
        return (x - mean) / (variance + self.config.layer_norm_epsilon).sqrt()


@model_mistake(
    "own-norm-over-sequence",
    "LayerNorm takes mean and variance over the whole sequence",
    killed_by="layer-norm-treats-rows-independently",
    breaks=("LNM-1", "LNM-5"),
)
class NormOverSequence(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean((-2, -1), keepdim=True)
        variance = centred.square().mean((-2, -1), keepdim=True)
        return centred * (variance + self.config.layer_norm_epsilon).rsqrt()


@model_mistake(
    "own-norm-over-batch",
    "LayerNorm takes the variance over the rows of the batch",
    killed_by="layer-norm-treats-rows-independently",
    breaks=("LNM-1",),
)
class NormOverBatch(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean((0, -1), keepdim=True)
        return centred * (variance + self.config.layer_norm_epsilon).rsqrt()


@model_mistake(
    "own-bias-before-gain",
    "LayerNorm adds its bias before it multiplies by its gain",
    killed_by="layer-norm-applies-gain-then-bias",
)
class BiasBeforeGain(Normalizing):
    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (self.normalize(x) + bias) * weight
