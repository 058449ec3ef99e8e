"""Laws of GEN: draws, their frequencies and their seeds."""

import secrets
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.frequencies import check_frequencies
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.text.distribution import sizes, softmax
from attnspec.conformance.text.sampler_cases import PLAIN
from attnspec.spec import SamplerImplementation, Sampling


@dataclass(frozen=True, kw_only=True)
class DrawsCase:
    """Many draws from one distribution.

    Attributes:
        logits: distinct logits, so that the filters keep one set of tokens.
        sampling: the settings of the sampler.
        draws: the number of tokens to generate.
        seed: the seed of the draws; None takes a fresh one on each run.
    """

    logits: tuple[float, ...]
    sampling: Sampling = PLAIN
    draws: int = 1000
    seed: int | None = None

    @property
    def probabilities(self) -> dict[int, float]:
        """The probability of every token.

        Raises:
            NotClaimed: if rounding may decide which tokens are kept.
        """
        order = sorted(range(len(self.logits)), key=lambda n: -self.logits[n])
        scaled = [self.logits[n] / self.sampling.temperature for n in order]
        (size, *others) = sizes(scaled, self.sampling, 1e-6)
        if others:
            raise NotClaimed("top_p lies where rounding decides which tokens are kept")
        kept = dict(zip(order, softmax(scaled[:size]), strict=False))
        return {n: kept.get(n, 0.0) for n in range(len(self.logits))}

    def draw(self, subject: SamplerImplementation) -> tuple[list[int], int]:
        """Return the tokens that a sampler draws, and the seed.

        Raises:
            NotClaimed: if the sampler does not support the settings.
            Violation: if it draws another number of tokens.
        """
        reason = subject.supports(self.sampling)
        if reason is not None:
            raise NotClaimed(reason)
        seed = secrets.randbits(31) if self.seed is None else self.seed
        logits = torch.tensor(self.logits, dtype=torch.float64)
        tokens = subject.generate(
            lambda ids: logits, [0], max_new_tokens=self.draws, sampling=self.sampling, seed=seed
        )
        if len(tokens) != self.draws:
            raise Violation(f"{self.draws} tokens were requested, got {len(tokens)} (seed {seed})")
        return list(tokens), seed


_DRAWS = (
    DrawsCase(logits=(0.0, 1.0)),
    DrawsCase(logits=(0.0, 1.0, 2.0, 0.5)),
    DrawsCase(logits=(0.0, 1.0, 2.0, 0.5), sampling=Sampling(temperature=0.5)),
    DrawsCase(logits=(0.0, 1.0, 2.0, 0.5), sampling=Sampling(temperature=5.0)),
    DrawsCase(logits=(0.0, 1.0, 2.0, 1.5), sampling=Sampling(temperature=2.0, top_k=2)),
    DrawsCase(logits=(0.0, 1.0, 2.0, 1.5), sampling=Sampling(temperature=2.0, top_p=0.6)),
)


@law("GEN-9", pinned=_DRAWS, cost=20.0)
def law_draws_follow_the_probabilities(subject: SamplerImplementation, case: DrawsCase) -> None:
    """GEN-9: tokens come as often as their probabilities say, with a fresh seed on each run."""
    tokens, seed = case.draw(subject)
    check_frequencies(tokens, case.probabilities, f"token (seed {seed})")


@law("GEN-9", pinned=_DRAWS[:2], cost=20.0)
def law_draws_are_independent(subject: SamplerImplementation, case: DrawsCase) -> None:
    """GEN-9: pairs of tokens come as often as the products of their probabilities say."""
    tokens, seed = case.draw(subject)
    single = case.probabilities
    pairs = {(a, b): p * q for a, p in single.items() for b, q in single.items()}
    check_frequencies(
        zip(tokens[::2], tokens[1::2], strict=True), pairs, f"pair of tokens (seed {seed})"
    )


@law(
    "GEN-10",
    pinned=[DrawsCase(logits=(0.0,) * 8, draws=24, seed=seed) for seed in (0, 1, 2**31 - 1)],
    explore=lambda subject: st.builds(
        DrawsCase, logits=st.just((0.0,) * 8), draws=st.just(24), seed=st.integers(0, 2**31 - 1)
    ),
)
def law_equal_seeds_give_equal_tokens(subject: SamplerImplementation, case: DrawsCase) -> None:
    """GEN-10: a seed fixes the tokens, whatever was drawn before; another seed gives others."""
    seed = case.seed or 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, _ = case.draw(subject)
        torch.manual_seed(2)
        second, _ = case.draw(subject)
        torch.manual_seed(1)
        other, _ = replace(case, seed=seed ^ 1).draw(subject)
    if first != second:
        raise Violation(f"seed {seed} gave {first}, then {second}")
    if first == other:
        # by chance with probability 8^-24, less than 1e-21
        raise Violation(f"seeds {seed} and {seed ^ 1} gave the same {len(first)} tokens {first}")
