"""Mutants of min-p: wrong threshold, order or check."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.sampler import Sampler, sampler_mistake
from attnspec.spec import Sampling


@sampler_mistake(
    "own-min-p-absolute",
    "min-p drops each token of a probability below min_p, whatever the largest one is",
    killed_by="min-p-keeps-the-tokens-of-a-share",
)
class Absolute(Sampler):
    def improbable(self, probabilities: torch.Tensor, share: float) -> torch.Tensor:
        return (probabilities < share) & (probabilities < probabilities.max())


@sampler_mistake(
    "own-min-p-drops-equality",
    "min-p drops a token that has exactly the share, so that 1 leaves one of equal tokens",
    killed_by="min-p-keeps-the-tokens-of-a-share",
)
class DropsEquality(Sampler):
    def improbable(self, probabilities: torch.Tensor, share: float) -> torch.Tensor:
        dropped = probabilities <= share * probabilities.max()
        return dropped.index_fill(0, probabilities.argmax(), False)


@sampler_mistake(
    "own-min-p-on-logits",
    "min-p compares logits, not probabilities, with a share of the largest one",
    killed_by="min-p-keeps-the-tokens-of-a-share",
    source="https://github.com/sgl-project/sglang-jax/pull/1563",
)
class OnLogits(Sampler):
    def min_p(self, scores: torch.Tensor, share: float) -> torch.Tensor:
        return scores.masked_fill(scores < share * scores.max(), -torch.inf)


@sampler_mistake(
    "own-min-p-one-minus",
    "min-p is read as the share that a token may lack, as if it were a top-p",
    killed_by="min-p-keeps-the-tokens-of-a-share",
)
class OneMinus(Sampler):
    def improbable(self, probabilities: torch.Tensor, share: float) -> torch.Tensor:
        return probabilities < (1 - share) * probabilities.max()


@sampler_mistake(
    "own-min-p-not-normalized",
    "probabilities are not made to add up to one after min-p",
    killed_by="min-p-keeps-the-tokens-of-a-share",
)
class NotNormalized(Sampler):
    def probabilities(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        probabilities = super().probabilities(logits, sampling)
        if sampling.min_p is None:
            return probabilities
        before = replace(sampling, min_p=None)
        return torch.where(probabilities > 0, super().probabilities(logits, before), 0.0)


@sampler_mistake(
    "own-min-p-before-temperature",
    "min-p comes before the temperature",
    killed_by="min-p-comes-last",
    source="https://github.com/vllm-project/vllm-metal/pull/728",
)
class BeforeTemperature(Sampler):
    def probabilities(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        if sampling.min_p is not None:
            self.check(sampling)
            logits = self.min_p(logits.double(), sampling.min_p)
        return super().probabilities(logits, replace(sampling, min_p=None))


@sampler_mistake(
    "own-min-p-before-top-p",
    "min-p comes before top-p, which then counts the probabilities that min-p left",
    killed_by="min-p-comes-last",
)
class BeforeTopP(Sampler):
    def filter(self, scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        if sampling.min_p is not None:
            scores = self.min_p(scores, sampling.min_p)
        return super().filter(scores, sampling)


@sampler_mistake(
    "own-min-p-not-checked",
    "a min_p out of range is taken as it comes",
    killed_by="settings-out-of-range-are-refused",
)
class Unchecked(Sampler):
    def check(self, sampling: Sampling) -> None:
        super().check(replace(sampling, min_p=None))
