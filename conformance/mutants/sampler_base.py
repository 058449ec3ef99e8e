"""A correct sampler in small steps, each of which a mutant can replace by its mistake."""

import math
from collections.abc import Callable, Collection, Sequence

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec import NextLogits, SamplerImplementation, Sampling


class Sampler:
    """A correct sampler; a mutant overrides the one step that it gets wrong."""

    def probabilities(self, logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        """Temperature, top-k, top-p, softmax."""
        self.check(sampling)
        scores = self.scale(logits.double(), sampling.temperature)
        return self.normalize(self.filter(scores, sampling))

    def check(self, sampling: Sampling) -> None:
        """Refuse what is out of range."""
        if not 0 < sampling.temperature < math.inf:
            raise ValueError(f"temperature must be positive, got {sampling.temperature}")
        if sampling.top_k is not None and sampling.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {sampling.top_k}")
        if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {sampling.top_p}")

    def scale(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """Divide by the temperature."""
        return logits / temperature

    def filter(self, scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
        """Minus infinity for what is not kept."""
        if sampling.top_k is not None:
            scores = self.top_k(scores, sampling.top_k)
        if sampling.top_p is not None:
            scores = self.top_p(scores, sampling.top_p)
        return scores

    def top_k(self, scores: torch.Tensor, k: int) -> torch.Tensor:
        """Keep the k largest, the first of equal ones."""
        order = scores.sort(descending=True, stable=True).indices
        return scores.index_fill(0, order[k:], -torch.inf)

    def top_p(self, scores: torch.Tensor, p: float) -> torch.Tensor:
        """Keep each token before which less than p has been gathered."""
        masses, order = scores.softmax(-1).sort(descending=True, stable=True)
        return scores.index_fill(0, order[self.dropped(masses, p)], -torch.inf)

    def dropped(self, masses: torch.Tensor, p: float) -> torch.Tensor:
        """Which of the descending probabilities are not needed."""
        return masses.cumsum(-1) - masses >= p

    def normalize(self, scores: torch.Tensor) -> torch.Tensor:
        """Softmax."""
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
        """Choose, stop or append."""
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
        """How many tokens at most."""
        return max_new_tokens

    def stops(self, stop_tokens: Collection[int]) -> Collection[int]:
        """Before which tokens to end."""
        return stop_tokens

    def source(self, seed: int) -> torch.Generator:
        """The random numbers."""
        return torch.Generator().manual_seed(seed)

    def context(self, prompt: list[int], new: list[int]) -> list[int]:
        """What the next token follows."""
        return prompt + new

    def choose(
        self, logits: torch.Tensor, sampling: Sampling | None, source: torch.Generator
    ) -> int:
        """The most probable token, or a draw."""
        if sampling is None:
            return self.greedy(logits)
        return self.draw(self.probabilities(logits, sampling), source)

    def greedy(self, logits: torch.Tensor) -> int:
        """The first of the largest."""
        row = logits.tolist()
        return int(row.index(max(row)))

    def draw(self, probabilities: torch.Tensor, source: torch.Generator) -> int:
        """The token in whose share of the unit interval a random number falls."""
        number = torch.rand((), generator=source, dtype=torch.float64)
        # of what was kept only: the sum of all may round to less than the number drawn
        kept = probabilities.nonzero().flatten()
        place = torch.searchsorted(probabilities[kept].cumsum(-1), number, right=True)
        return int(kept[min(int(place), len(kept) - 1)])

    def ended(self, new: list[int], token: int) -> list[int]:
        """What is returned where a stop token came."""
        return new


def sampler_mistake(
    id: str, title: str, *, kills: tuple[str, ...], source: str = ""
) -> Callable[[type[Sampler]], type[Sampler]]:
    """Plant the decorated class as a sampler."""

    def register(base: type[Sampler]) -> type[Sampler]:
        plant(
            id=id,
            title=title,
            subject=sampler(id.replace("-", "_"), base()),
            kills=kills,
            source=source,
        )
        return base

    return register


def sampler(name: str, steps: Sampler) -> SamplerImplementation:
    """Declare a sampler that is written in steps."""
    return SamplerImplementation(
        name=name, probabilities=steps.probabilities, generate=steps.generate
    )
