"""Mutants of sampling: wrong stops, choices, contexts, draws or seeds."""

from collections.abc import Collection, Sequence

import torch

from attnspec.conformance.mutants.bases.sampler import Sampler, sampler_mistake
from attnspec.spec import Sampling


@sampler_mistake(
    "own-stop-token-ignored",
    "generation goes on after a stop token",
    killed_by="generation-ends-before-a-stop-token",
)
class NeverStops(Sampler):
    def stops(self, stop_tokens: Collection[int]) -> Collection[int]:
        return ()


@sampler_mistake(
    "own-stop-token-returned",
    "the stop token itself is returned",
    killed_by="generation-ends-before-a-stop-token",
)
class ReturnsStop(Sampler):
    def ended(self, new: list[int], token: int) -> list[int]:
        return [*new, token]


@sampler_mistake(
    "own-stop-token-in-prompt",
    "a stop token in the prompt ends generation before it begins",
    killed_by="generation-ends-before-a-stop-token",
)
class StopsAtPrompt(Sampler):
    def steps(
        self, max_new_tokens: int, prompt: Sequence[int], stop_tokens: Collection[int]
    ) -> int:
        return 0 if set(prompt) & set(stop_tokens) else max_new_tokens


@sampler_mistake(
    "own-one-token-too-few",
    "one token fewer than requested is generated",
    killed_by="generation-ends-before-a-stop-token",
)
class OneTooFew(Sampler):
    def steps(
        self, max_new_tokens: int, prompt: Sequence[int], stop_tokens: Collection[int]
    ) -> int:
        return max_new_tokens - 1


@sampler_mistake(
    "own-greedy-last-of-equals",
    "of equal logits greedy generation takes that of the highest id",
    killed_by="greedy-takes-the-largest-logit",
)
class LastOfEquals(Sampler):
    def greedy(self, logits: torch.Tensor) -> int:
        return int((logits == logits.max()).nonzero()[-1])


@sampler_mistake(
    "own-greedy-smallest",
    "greedy generation takes the smallest logit",
    killed_by="greedy-takes-the-largest-logit",
)
class Smallest(Sampler):
    def greedy(self, logits: torch.Tensor) -> int:
        return int(logits.argmin())


@sampler_mistake(
    "own-greedy-forgets-the-last-id",
    "greedy generation forgets the last id of the vocabulary",
    killed_by="greedy-takes-the-largest-logit",
)
class ForgetsLast(Sampler):
    def greedy(self, logits: torch.Tensor) -> int:
        return super().greedy(logits[: max(1, len(logits) - 1)])


@sampler_mistake(
    "own-context-last-token",
    "the model is called with the last token alone",
    killed_by="each-token-follows-from-all-before-it",
)
class LastTokenOnly(Sampler):
    def context(self, prompt: list[int], new: list[int]) -> list[int]:
        return (prompt + new)[-1:]


@sampler_mistake(
    "own-context-stale",
    "the newest token is not yet in the context",
    killed_by="each-token-follows-from-all-before-it",
)
class Stale(Sampler):
    def context(self, prompt: list[int], new: list[int]) -> list[int]:
        return prompt + new[:-1]


@sampler_mistake(
    "own-context-without-prompt",
    "after the first new token the prompt is forgotten",
    killed_by="each-token-follows-from-all-before-it",
)
class PromptForgotten(Sampler):
    def context(self, prompt: list[int], new: list[int]) -> list[int]:
        return new or prompt


@sampler_mistake(
    "own-draw-ignores-filters",
    "tokens are drawn from all, whatever the filters keep",
    killed_by="draws-follow-the-probabilities",
)
class DrawsFromAll(Sampler):
    def choose(
        self, logits: torch.Tensor, sampling: Sampling | None, source: torch.Generator
    ) -> int:
        if sampling is None:
            return self.greedy(logits)
        scores = self.scale(logits.double(), sampling.temperature)
        return self.draw(scores.softmax(-1), source)


@sampler_mistake(
    "own-draw-uniform-among-kept",
    "every token that is kept is as likely as any other",
    killed_by="draws-follow-the-probabilities",
)
class Uniform(Sampler):
    def draw(self, probabilities: torch.Tensor, source: torch.Generator) -> int:
        return super().draw((probabilities > 0) / (probabilities > 0).sum(), source)


@sampler_mistake(
    "own-draw-takes-the-mode",
    "the most probable token is taken instead of a draw",
    killed_by="draws-follow-the-probabilities",
)
class Mode(Sampler):
    def draw(self, probabilities: torch.Tensor, source: torch.Generator) -> int:
        return int(probabilities.argmax())


@sampler_mistake(
    "own-draw-repeated",
    "each random number is used for two tokens",
    killed_by="draws-are-independent",
)
class Repeated(Sampler):
    used: torch.Tensor | None = None

    def source(self, seed: int) -> torch.Generator:
        self.used = None
        return super().source(seed)

    def draw(self, probabilities: torch.Tensor, source: torch.Generator) -> int:
        if self.used is None:
            self.used = source.get_state()
        else:
            source.set_state(self.used)
            self.used = None
        return super().draw(probabilities, source)


@sampler_mistake(
    "own-seed-ignored",
    "the seed is not used: every run starts from fresh random numbers",
    killed_by="equal-seeds-give-equal-tokens",
)
class SeedIgnored(Sampler):
    def source(self, seed: int) -> torch.Generator:
        source = torch.Generator()
        source.seed()
        return source


@sampler_mistake(
    "own-seed-global",
    "the global generator is used, which the seed does not reach",
    killed_by="equal-seeds-give-equal-tokens",
)
class GlobalGenerator(Sampler):
    def source(self, seed: int) -> torch.Generator:
        return torch.default_generator


@sampler_mistake(
    "own-seed-constant",
    "every seed gives the same tokens",
    killed_by="equal-seeds-give-equal-tokens",
)
class SeedConstant(Sampler):
    def source(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(0)
