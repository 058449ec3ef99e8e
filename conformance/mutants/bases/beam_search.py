"""A correct beam search in overridable steps: a mutant overrides the step that it gets wrong."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from attnspec.spec import Beams, EarlyStopping, Hypothesis, NextLogits

Beam = tuple[list[int], float]
"""The new tokens of a hypothesis and their log-probability."""


@dataclass
class Search:
    """The state of a search.

    Attributes:
        prompt: the ids from which it starts.
        beams: the settings.
        stops: the stop tokens.
        max_new_tokens: the largest number of new tokens.
        opened: hypotheses that are continued.
        finished: hypotheses that are not.
    """

    prompt: list[int]
    beams: Beams
    stops: frozenset[int]
    max_new_tokens: int
    opened: list[Beam] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)

    def is_last(self, tokens: Sequence[int]) -> bool:
        """Return whether a hypothesis has the full length."""
        return len(tokens) == self.max_new_tokens

    def ends(self, tokens: Sequence[int]) -> bool:
        """Return whether a hypothesis ends in a stop token."""
        return tokens[-1] in self.stops


class BeamSearcher:
    """A correct beam search; every method is a step."""

    def __call__(
        self,
        next_logits: NextLogits,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        beams: Beams,
        stop_tokens: Collection[int] = frozenset(),
    ) -> list[Hypothesis]:
        """Continue, finish and keep hypotheses until the search is over."""
        self.check(beams)
        search = Search(list(prompt), beams, frozenset(stop_tokens), max_new_tokens)
        search.opened = self.first(search)
        while search.opened and not self.is_over(search):
            candidates = self.continuations(search, next_logits)
            self.finish(search, candidates)
            self.keep(search, candidates)
        return search.finished

    def check(self, beams: Beams) -> None:
        """Raise for a setting out of range."""
        if beams.beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams.beams}")
        if not math.isfinite(beams.length_penalty):
            raise ValueError(f"length_penalty must be finite, got {beams.length_penalty}")

    def first(self, search: Search) -> list[Beam]:
        """Return the hypotheses before the first step: one, without tokens."""
        return [([], 0.0)]

    def continuations(self, search: Search, next_logits: NextLogits) -> list[Beam]:
        """Return all continuations of the open hypotheses, the most probable first."""
        continued = [
            (tokens, total, step, token)
            for tokens, total in search.opened
            for token, step in enumerate(self.steps(next_logits([*search.prompt, *tokens])))
        ]
        candidates = [
            ([*tokens, token], self.add(total, step)) for tokens, total, step, token in continued
        ]
        return sorted(candidates, key=lambda each: -each[1])

    def steps(self, logits: torch.Tensor) -> list[float]:
        """Return the log-probability of each token."""
        values: list[float] = logits.double().log_softmax(-1).tolist()
        return values

    def add(self, total: float, step: float) -> float:
        """Add the log-probability of a token to that of the tokens before it."""
        return total + step

    def finish(self, search: Search, candidates: list[Beam]) -> None:
        """Move the candidates that end, among the best, to the finished hypotheses."""
        for tokens, total in candidates[: search.beams.beams]:
            if search.ends(tokens) or search.is_last(tokens):
                score = self.score(search, tokens, total)
                search.finished.append(Hypothesis(tuple(tokens), score))
        search.finished = sorted(search.finished, key=lambda each: -each.score)
        search.finished = search.finished[: search.beams.beams]

    def score(self, search: Search, tokens: list[int], total: float) -> float:
        """Return the score of a finished hypothesis."""
        return self.normalized(search, total, self.length(search, tokens))

    def length(self, search: Search, tokens: list[int]) -> int:
        """Return the length of a hypothesis."""
        return len(tokens)

    def normalized(self, search: Search, total: float, length: int) -> float:
        """Divide by a power of the length."""
        return float(total / length**search.beams.length_penalty)

    def keep(self, search: Search, candidates: list[Beam]) -> None:
        """Keep the best candidates that do not end."""
        others = [each for each in candidates if not search.ends(each[0])]
        search.opened = others[: search.beams.beams]

    def is_over(self, search: Search) -> bool:
        """Return whether the search ends."""
        tokens, total = search.opened[0]
        if tokens and search.is_last(tokens):
            return True
        return self.is_full(search) and self.is_hopeless(search, tokens, total)

    def is_full(self, search: Search) -> bool:
        """Return whether enough hypotheses are finished."""
        return len(search.finished) >= search.beams.beams

    def is_hopeless(self, search: Search, tokens: list[int], total: float) -> bool:
        """Return whether no better hypothesis is expected of the best open one."""
        if search.beams.early_stopping is EarlyStopping.FULL:
            return True
        length = self.longest(search, tokens)
        return self.normalized(search, total, length) <= search.finished[-1].score

    def longest(self, search: Search, tokens: list[int]) -> int:
        """Return the length with which the best open hypothesis is compared."""
        never = search.beams.early_stopping is EarlyStopping.NEVER
        if never and search.beams.length_penalty > 0:
            return search.max_new_tokens
        return len(tokens)
