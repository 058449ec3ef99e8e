"""Mutants of the activation: another GELU, or not the configured function."""

import math

import torch
from torch.nn import functional

from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, model_mistake


@model_mistake(
    "own-erf-gelu",
    "GELU in its erf form where the tanh form is configured",
    killed_by="activation-is-the-tanh-gelu",
    breaks=("ACT-4", "ACT-5"),
)
class ErfGelu(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation_function == "gelu_new":
            return functional.gelu(x)
        return super().activation(x)


@model_mistake(
    "own-quick-gelu",
    "GELU approximated by x times the logistic of 1.702 x",
    killed_by="gelu-is-not-the-erf-form",
    breaks=("ACT-1", "ACT-3", "ACT-5"),
)
class QuickGelu(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation_function == "gelu_new":
            return x * torch.sigmoid(1.702 * x)
        return super().activation(x)


@model_mistake(
    "own-gelu-constant",
    "the cubic coefficient of GELU is 0.0447 on one side of zero",
    killed_by="gelu-minus-its-mirror-image-is-the-argument",
    breaks=("ACT-1", "ACT-4", "ACT-5"),
)
class GeluConstant(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation_function != "gelu_new":
            return super().activation(x)
        cubic = torch.where(x < 0, 0.0447, 0.044715)
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + cubic * x**3)))


@model_mistake(
    "own-leaky-gelu",
    "GELU keeps a slope of 1e-3 far below zero",
    killed_by="gelu-tends-to-zero-and-to-its-argument",
)
class LeakyGelu(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return super().activation(x) + torch.where(x < -8, 1e-3 * x, 0.0)


@model_mistake(
    "own-activation-ignored",
    "activation_function ignored, always GPT-2's GELU",
    killed_by="the-configured-activation-is-applied",
)
class ActivationIgnored(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")
