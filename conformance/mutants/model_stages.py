"""Mutants of GPT-2's stages: embeddings, LayerNorm, activation."""

import math

import torch
from torch.nn import functional

from attnspec.conformance.mutants.gpt2_base import (
    OMNIVERSE,
    CompactGPT2,
    Normalizing,
    model_mistake,
)


@model_mistake(
    "own-token-clamped",
    "token ids out of range are clamped into it",
    "an-id-without-a-row-is-an-error",
)
class _TokenClamped(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().tokens(input_ids.clamp(0, self.config.vocab_size - 1))


@model_mistake(
    "own-token-negative-wraps",
    "negative token ids count from the end of the table",
    "an-id-without-a-row-is-an-error",
)
class _TokenWraps(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.weights["transformer.wte.weight"][input_ids]


@model_mistake(
    "own-token-next-row",
    "each token selects the row after its own",
    "each-token-selects-its-row",
    "logits-equal-the-oracles",
)
class _TokenNextRow(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        inside = (input_ids >= 0) & (input_ids < self.config.vocab_size)
        return super().tokens(
            torch.where(inside, (input_ids + 1) % self.config.vocab_size, input_ids)
        )


@model_mistake(
    "own-embedding-scaled",
    "token embeddings multiplied by the root of d_model",
    "positions-add",
    "logits-equal-the-oracles",
)
class _EmbeddingScaled(CompactGPT2):
    def tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().tokens(input_ids) * math.sqrt(self.config.n_embd)


@model_mistake(
    "own-no-positions",
    "position embeddings left out",
    "positions-add",
    "every-hidden-state-equals-the-oracles",
)
class _NoPositions(CompactGPT2):
    def embed(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.places(position_ids)
        return self.tokens(input_ids)


@model_mistake(
    "own-positions-clamped",
    "positions beyond the last one reuse it",
    "a-sequence-longer-than-the-positions-is-an-error",
    "a-position-without-a-row-is-an-error",
)
class _PositionsClamped(CompactGPT2):
    def places(self, position_ids: torch.Tensor) -> torch.Tensor:
        return super().places(position_ids.clamp(0, self.config.n_positions - 1))


@model_mistake(
    "own-positions-from-one",
    "positions counted from one, the last one reused",
    "positions-add",
)
class _PositionsFromOne(CompactGPT2):
    def positions(self, past: int, length: int) -> torch.Tensor:
        places = super().positions(past, length)
        last = self.config.n_positions - 1
        return torch.where(places < last, places + 1, places)


# LAYER NORMALIZATION


@model_mistake(
    "MDL-04",
    "LayerNorm divides by the Bessel-corrected deviation",
    "layer-norm-has-zero-mean-and-biased-unit-variance",
    "epsilon-stands-inside-the-root",
    "one-final-layer-norm-stands-before-the-head",
    source=OMNIVERSE,
)
class _Bessel(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (
            x.var(-1, keepdim=True) + self.config.layer_norm_epsilon
        ).sqrt()


@model_mistake(
    "own-epsilon-outside",
    "LayerNorm adds epsilon to the deviation, outside the root",
    "epsilon-stands-inside-the-root",
    "layer-norm-scales-with-its-row",
)
class _EpsilonOutside(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.std(-1, keepdim=True, correction=0) + self.config.layer_norm_epsilon)


@model_mistake(
    "own-epsilon-fixed",
    "LayerNorm always uses epsilon 1e-5",
    "epsilon-stands-inside-the-root",
    "layer-norm-scales-with-its-row",
    "logits-equal-the-oracles",
)
class _EpsilonFixed(CompactGPT2):
    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


@model_mistake(
    "own-rms-norm",
    "LayerNorm does not subtract the mean",
    "layer-norm-has-zero-mean-and-biased-unit-variance",
    "layer-norm-ignores-a-shift-of-the-row",
)
class _RMSNorm(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        square = x.square().mean(-1, keepdim=True)
        return x * (square + self.config.layer_norm_epsilon).rsqrt()


@model_mistake(
    "own-variance-by-moments",
    "LayerNorm takes the variance as mean square less squared mean",
    "layer-norm-ignores-a-shift-of-the-row",
)
class _Moments(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) - mean.square()
        return (x - mean) / (variance + self.config.layer_norm_epsilon).sqrt()


@model_mistake(
    "own-norm-over-sequence",
    "LayerNorm takes mean and variance over the whole sequence",
    "layer-norm-treats-each-row-alone",
    "no-logit-depends-on-later-tokens",
)
class _NormOverSequence(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean((-2, -1), keepdim=True)
        variance = centred.square().mean((-2, -1), keepdim=True)
        return centred * (variance + self.config.layer_norm_epsilon).rsqrt()


@model_mistake(
    "own-norm-over-batch",
    "LayerNorm takes the variance over the rows of the batch",
    "layer-norm-treats-each-row-alone",
    "rows-of-a-batch-do-not-meet",
)
class _NormOverBatch(Normalizing):
    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean((0, -1), keepdim=True)
        return centred * (variance + self.config.layer_norm_epsilon).rsqrt()


@model_mistake(
    "own-bias-before-gain",
    "LayerNorm adds its bias before it multiplies by its gain",
    "layer-norm-applies-gain-then-bias",
    "one-final-layer-norm-stands-before-the-head",
)
class _BiasBeforeGain(Normalizing):
    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (self.normalize(x) + bias) * weight


# ACTIVATION


@model_mistake(
    "own-erf-gelu",
    "GELU in its erf form where the tanh form is asked for",
    "activation-is-the-tanh-gelu",
    "gelu-is-not-the-erf-form",
    "the-mlp-reads-the-stream-after-attention",
    "logits-equal-the-oracles",
)
class _ErfGelu(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation_function == "gelu_new":
            return functional.gelu(x)
        return super().activation(x)


@model_mistake(
    "own-quick-gelu",
    "GELU approximated by x times the logistic of 1.702 x",
    "activation-is-the-tanh-gelu",
    "gelu-is-not-the-erf-form",
)
class _QuickGelu(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation_function == "gelu_new":
            return x * torch.sigmoid(1.702 * x)
        return super().activation(x)


@model_mistake(
    "own-gelu-constant",
    "the cubic coefficient of GELU is 0.0447 on one side of zero",
    "gelu-differs-from-its-mirror-by-the-argument",
    "activation-is-the-tanh-gelu",
)
class _GeluConstant(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.activation_function != "gelu_new":
            return super().activation(x)
        cubic = torch.where(x < 0, 0.0447, 0.044715)
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + cubic * x**3)))


@model_mistake(
    "own-leaky-gelu",
    "GELU keeps a slope of 1e-3 far below zero",
    "gelu-tends-to-zero-and-to-its-argument",
)
class _LeakyGelu(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return super().activation(x) + torch.where(x < -8, 1e-3 * x, 0.0)


@model_mistake(
    "own-activation-ignored",
    "activation_function ignored, always GPT-2's GELU",
    "the-configured-activation-is-applied",
    "linear-maps-are-stored-input-major",
)
class _ActivationIgnored(CompactGPT2):
    def activation(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x, approximate="tanh")
