"""Mutants of sampling: wrong temperature, filters or checks."""

import torch

from attnspec.conformance.mutants.bases.sampler import Sampler, sampler_mistake
from attnspec.spec import Sampling


@sampler_mistake(
    "own-temperature-multiplies",
    "logits are multiplied by the temperature",
    killed_by="temperature-divides-the-logits",
)
class Multiplies(Sampler):
    def scale(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return logits * temperature


@sampler_mistake(
    "own-temperature-ignored",
    "the temperature does nothing",
    killed_by="temperature-divides-the-logits",
)
class NoTemperature(Sampler):
    def scale(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return logits


@sampler_mistake(
    "own-temperature-on-probabilities",
    "probabilities, not logits, are divided by the temperature",
    killed_by="temperature-divides-the-logits",
)
class OnProbabilities(Sampler):
    def scale(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return logits.softmax(-1) / temperature


@sampler_mistake(
    "own-temperature-after-filters",
    "the temperature comes after top-p",
    killed_by="temperature-then-top-k-then-top-p",
)
class TemperatureLast(Sampler):
    def probabilities(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        self.check(sampling)
        kept = self.filter(logits.double(), sampling)
        return self.normalize(self.scale(kept, sampling.temperature))


@sampler_mistake(
    "own-top-p-before-top-k",
    "top-p comes before top-k",
    killed_by="temperature-then-top-k-then-top-p",
)
class TopPFirst(Sampler):
    def filter(self, scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        if sampling.top_p is not None:
            scores = self.top_p(scores, sampling.top_p)
        if sampling.top_k is not None:
            scores = self.top_k(scores, sampling.top_k)
        return scores if sampling.min_p is None else self.min_p(scores, sampling.min_p)


@sampler_mistake(
    "own-softmax-without-maximum",
    "large logits overflow",
    killed_by="temperature-divides-the-logits",
)
class Overflows(Sampler):
    def normalize(self, scores: torch.Tensor) -> torch.Tensor:
        exponentials = scores.exp()
        return exponentials / exponentials.sum(-1)


@sampler_mistake(
    "own-top-k-one-too-many",
    "top-k keeps k + 1 tokens",
    killed_by="drawing-with-top-k-one-is-greedy",
)
class OneTooMany(Sampler):
    def top_k(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        return super().top_k(scores, k + 1)


@sampler_mistake(
    "own-top-k-drops-ties",
    "top-k keeps only what is larger than the k-th largest logit",
    killed_by="top-k-keeps-the-k-largest",
)
class DropsTies(Sampler):
    def top_k(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        least = scores.sort(descending=True).values[min(k, len(scores)) - 1]
        return scores.masked_fill((scores <= least) & (scores < scores.max()), -torch.inf)


@sampler_mistake(
    "own-top-k-smallest",
    "top-k keeps the k smallest logits",
    killed_by="top-k-keeps-the-k-largest",
)
class KeepsSmallest(Sampler):
    def top_k(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        order = scores.sort(descending=False).indices
        return scores.index_fill(0, order[k:], -torch.inf)


@sampler_mistake(
    "own-top-k-zero-logits",
    "tokens that are not kept get logit 0 instead of minus infinity",
    killed_by="top-k-keeps-the-k-largest",
)
class ZeroLogits(Sampler):
    def top_k(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        order = scores.sort(descending=True, stable=True).indices
        return scores.index_fill(0, order[k:], 0.0)


@sampler_mistake(
    "own-top-k-not-normalized",
    "probabilities are not made to add up to one after a filter",
    killed_by="top-k-keeps-the-k-largest",
)
class NotNormalized(Sampler):
    def probabilities(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        self.check(sampling)
        scores = self.scale(logits.double(), sampling.temperature)
        kept = self.filter(scores, sampling) > -torch.inf
        return torch.where(kept, scores.softmax(-1), 0.0)


@sampler_mistake(
    "own-top-p-drops-the-crossing-token",
    "top-p drops the token with which p is reached",
    killed_by="top-p-keeps-the-fewest-that-reach-p",
)
class DropsCrossing(Sampler):
    def dropped(self, probabilities: torch.Tensor, p: float) -> torch.Tensor:
        dropped = probabilities.cumsum(-1) > p
        dropped[0] = False
        return dropped


@sampler_mistake(
    "own-top-p-one-too-many",
    "top-p keeps one token after p is reached",
    killed_by="top-p-keeps-the-fewest-that-reach-p",
)
class TopPOneTooMany(Sampler):
    def dropped(self, probabilities: torch.Tensor, p: float) -> torch.Tensor:
        return super().dropped(probabilities, p).roll(1).index_fill(0, torch.tensor([0]), False)


@sampler_mistake(
    "own-top-p-past-equality",
    "top-p goes on where p is reached exactly",
    killed_by="top-p-is-reached-by-an-exact-sum",
)
class PastEquality(Sampler):
    def dropped(self, probabilities: torch.Tensor, p: float) -> torch.Tensor:
        return probabilities.cumsum(-1) - probabilities > p


@sampler_mistake(
    "own-top-p-threshold",
    "top-p keeps each token that has probability 1 - p by itself",
    killed_by="top-p-keeps-the-fewest-that-reach-p",
)
class Threshold(Sampler):
    def dropped(self, probabilities: torch.Tensor, p: float) -> torch.Tensor:
        dropped = probabilities < 1 - p
        dropped[0] = False
        return dropped


@sampler_mistake(
    "own-top-p-order-not-undone",
    "top-p filters places in the sorted order, not tokens",
    killed_by="top-p-keeps-the-fewest-that-reach-p",
)
class OrderNotUndone(Sampler):
    def top_p(self, scores: torch.Tensor, p: float) -> torch.Tensor:
        probabilities = scores.softmax(-1).sort(descending=True).values
        return scores.masked_fill(self.dropped(probabilities, p), -torch.inf)


@sampler_mistake(
    "own-settings-not-checked",
    "settings out of range are taken as they come",
    killed_by="settings-out-of-range-are-refused",
)
class Unchecked(Sampler):
    def check(self, sampling: Sampling) -> None:
        pass


@sampler_mistake(
    "own-temperature-zero-is-greedy",
    "a temperature of zero is taken for greedy generation without a word",
    killed_by="settings-out-of-range-are-refused",
)
class ZeroIsGreedy(Sampler):
    def check(self, sampling: Sampling) -> None:
        if sampling.temperature != 0:
            super().check(sampling)

    def scale(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        return logits / max(temperature, 1e-9)
