"""A correct sampler in overridable steps: a mutant overrides the one step that it gets wrong."""

import math
from collections.abc import Callable, Collection, Sequence

import torch

from attnspec.conformance.mutants.bases.beam_search import BeamSearcher
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import NextLogits, SamplerFeature, SamplerImplementation, Sampling


class Sampler:
    """A correct sampler; every method is a step."""

    def probabilities(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        """Apply temperature, top-k, top-p and softmax, in this order."""
        self.check(sampling)
        scores = self.scale(logits.double(), sampling.temperature)
        return self.normalize(self.filter(scores, sampling))

    def check(self, sampling: Sampling) -> None:
        """Raise for a setting out of range."""
        if not 0 < sampling.temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {sampling.temperature}")
        if sampling.top_k is not None and sampling.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {sampling.top_k}")
        if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {sampling.top_p}")
        if sampling.min_p is not None and not 0 <= sampling.min_p <= 1:
            raise ValueError(f"min_p must lie in [0, 1], got {sampling.min_p}")

    def scale(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """Divide by the temperature."""
        return logits / temperature

    def filter(self, scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        """Set the scores of dropped tokens to minus infinity."""
        if sampling.top_k is not None:
            scores = self.top_k(scores, sampling.top_k)
        if sampling.top_p is not None:
            scores = self.top_p(scores, sampling.top_p)
        if sampling.min_p is not None:
            scores = self.min_p(scores, sampling.min_p)
        return scores

    def top_k(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        """Keep the k largest scores; of equal ones the first."""
        order = scores.sort(descending=True, stable=True).indices
        return scores.index_fill(0, order[k:], -torch.inf)

    def top_p(self, scores: torch.Tensor, p: float) -> torch.Tensor:
        """Keep each token if the more probable ones have less than p together."""
        probabilities, order = scores.softmax(-1).sort(descending=True, stable=True)
        return scores.index_fill(0, order[self.dropped(probabilities, p)], -torch.inf)

    def dropped(self, probabilities: torch.Tensor, p: float) -> torch.Tensor:
        """Return which of the descending probabilities to drop."""
        return probabilities.cumsum(-1) - probabilities >= p

    def min_p(self, scores: torch.Tensor, share: float) -> torch.Tensor:
        """Keep each token that has at least this share of the largest probability."""
        probabilities = scores.softmax(-1)
        return scores.masked_fill(self.improbable(probabilities, share), -torch.inf)

    def improbable(self, probabilities: torch.Tensor, share: float) -> torch.Tensor:
        """Return which probabilities to drop."""
        return probabilities < share * probabilities.max()

    def normalize(self, scores: torch.Tensor) -> torch.Tensor:
        """Apply softmax."""
        return scores.softmax(-1)

    def generate(
        self,
        next_logits: NextLogits,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        stop_tokens: Collection[int] = frozenset(),
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> list[int]:
        """Choose tokens until a stop token or the maximum length."""
        source = self.source(seed)
        new: list[int] = []
        for _ in range(self.steps(max_new_tokens, prompt, stop_tokens)):
            logits = next_logits(self.context(list(prompt), new))
            token = self.choose(logits, sampling, source)
            if token in self.stops(stop_tokens):
                return self.ended(new, token)
            new.append(token)
        return new

    def steps(
        self, max_new_tokens: int, prompt: Sequence[int], stop_tokens: Collection[int]
    ) -> int:
        """Return the maximum number of new tokens."""
        return max_new_tokens

    def stops(self, stop_tokens: Collection[int]) -> Collection[int]:
        """Return the tokens that end generation."""
        return stop_tokens

    def source(self, seed: int) -> torch.Generator:
        """Return the random generator."""
        return torch.Generator().manual_seed(seed)

    def context(self, prompt: list[int], new: list[int]) -> list[int]:
        """Return the tokens from which the next one is predicted."""
        return prompt + new

    def choose(
        self, logits: torch.Tensor, sampling: Sampling | None, source: torch.Generator
    ) -> int:
        """Return the most probable token, or draw one."""
        if sampling is None:
            return self.greedy(logits)
        return self.draw(self.probabilities(logits, sampling), source)

    def greedy(self, logits: torch.Tensor) -> int:
        """Return the first of the largest logits."""
        row = logits.tolist()
        return int(row.index(max(row)))

    def draw(self, probabilities: torch.Tensor, source: torch.Generator) -> int:
        """Return the token whose share of the unit interval contains a random number."""
        number = torch.rand((), generator=source, dtype=torch.float64)
        # kept tokens only: the sum of all may round to less than the drawn number
        kept = probabilities.nonzero().flatten()
        place = torch.searchsorted(probabilities[kept].cumsum(-1), number, right=True)
        return int(kept[min(int(place), len(kept) - 1)])

    def ended(self, new: list[int], token: int) -> list[int]:
        """Return the new tokens after a stop token was chosen."""
        return new


def sampler_mistake(
    id: str, title: str, *, killed_by: str, source: str = ""
) -> Callable[[type[Sampler]], type[Sampler]]:
    """Register the decorated sampler class as a mutant."""

    def register(mutant: type[Sampler]) -> type[Sampler]:
        plant(
            id=id,
            title=title,
            subject=sampler(id.replace("-", "_"), mutant()),
            killed_by=killed_by,
            source=source,
        )
        return mutant

    return register


def sampler(
    name: str, steps: Sampler, beam_search: BeamSearcher | None = None
) -> SamplerImplementation:
    """Declare a sampler by its steps and those of its beam search."""
    return SamplerImplementation(
        name=name,
        probabilities=steps.probabilities,
        generate=steps.generate,
        features=frozenset(SamplerFeature),
        beam_search=beam_search or BeamSearcher(),
    )


def beam_mistake(
    id: str, title: str, *, killed_by: str, source: str = ""
) -> Callable[[type[BeamSearcher]], type[BeamSearcher]]:
    """Register a sampler with the decorated beam search as a mutant."""

    def register(mutant: type[BeamSearcher]) -> type[BeamSearcher]:
        plant(
            id=id,
            title=title,
            subject=sampler(id.replace("-", "_"), Sampler(), mutant()),
            killed_by=killed_by,
            source=source,
        )
        return mutant

    return register
