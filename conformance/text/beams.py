r"""Cases of a beam search, and the hypotheses that it must find, as far as rounding allows.

Let u be the unit roundoff, M = max |x_j| over the logits of a row and V their number. The logits
and their differences from the largest one are exact. A computed exponential errs by a factor of two
units in the last place, 4u, and the sum by another (V − 1)u, so that its logarithm errs by (V + 3)u
and by two units of its own, at most 4u ln V. Shifting it by the largest logit and subtracting it
from x_w rounds numbers of at most 2M + ln V, at most three times. So a log-probability errs by at
most

    e = u (6M + 7 ln V + V + 3),

and a sum of n of them, of size S, by n e + n u S. The power of the length and the quotient add a
factor of 4u. The oracle adds its own error, in float64.

A decision is open if two hypotheses lie closer than the sum of their errors: then either result is
allowed, and a case says nothing.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.text.distribution import Precision
from attnspec.conformance.text.sampler_cases import ScriptCase
from attnspec.spec import Beams, EarlyStopping, Hypothesis, SamplerImplementation

FLAT = 64
"""Logits are multiples of 1/64, so close together that beams compete."""


@dataclass(frozen=True, kw_only=True)
class BeamCase:
    """A beam search on logits that depend on every id so far.

    Attributes:
        script: the source of the logits, the prompt, the stop tokens and the length.
        beams: the settings.
    """

    script: ScriptCase
    beams: Beams

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        """The ids from which each hypothesis starts."""
        return self.script.prompt

    def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of each token after the new tokens of a hypothesis."""
        logits = self.script.next_logits([*self.prompt, *tokens]).tolist()
        peak = max(logits)
        total = math.log(math.fsum(math.exp(x - peak) for x in logits))
        return [x - peak - total for x in logits]

    def sum(self, tokens: Sequence[int]) -> float:
        """Return the log-probability of a hypothesis."""
        return math.fsum(
            self.log_probabilities(tokens[:n])[token] for n, token in enumerate(tokens)
        )

    def score(self, tokens: Sequence[int]) -> float:
        """Return the score of a hypothesis."""
        return self.normalized(self.sum(tokens), len(tokens))

    def normalized(self, total: float, length: int) -> float:
        """Divide the log-probability of a hypothesis by the power of a length."""
        return float(total / length**self.beams.length_penalty)

    def __str__(self) -> str:
        """Return the script's numbers and the settings."""
        return f"{self.script} {self.beams}".replace(" greedy", "")


class Errors:
    """The largest errors of sums and scores: the bounds of this module's docstring."""

    def __init__(self, case: BeamCase, dtype: torch.dtype) -> None:
        """Derive the bounds of a case in the type in which it is computed."""
        self.case = case
        self.u = Precision.of(dtype).u + Precision.of(torch.float64).u
        vocab, largest = case.script.vocab, case.script.levels / case.script.step
        self.of_one = self.u * (6 * largest + 7 * math.log(vocab) + vocab + 3)

    def of_sum(self, total: float, length: int) -> float:
        """Return the largest error of a log-probability."""
        return length * (self.of_one + self.u * abs(total))

    def of_score(self, total: float, length: int) -> float:
        """Return the largest error of a score."""
        error = self.of_sum(total, length) + 4 * self.u * abs(total)
        return abs(self.case.normalized(error, length))


@dataclass(frozen=True)
class _Candidate:
    """A hypothesis: its tokens, the quantity by which it is compared, and that quantity's error."""

    tokens: tuple[int, ...]
    value: float
    error: float


def expected_hypotheses(case: BeamCase, dtype: torch.dtype) -> list[Hypothesis]:
    """Return the hypotheses of a beam search, the best one first.

    Args:
        case: the search.
        dtype: the type in which the subject computes log-probabilities.

    Raises:
        NotClaimed: if errors of rounding may decide which hypotheses are found, or if there are
            fewer than beams.
    """
    script, count, stops = case.script, case.beams.beams, case.script.stop_tokens
    errors = Errors(case, dtype)
    opened: list[_Candidate] = [_Candidate((), 0.0, 0.0)]
    finished: list[_Candidate] = []
    for length in range(1, script.max_new_tokens + 1):
        is_last = length == script.max_new_tokens
        continuations = [
            _Candidate((*parent.tokens, token), total, errors.of_sum(total, length))
            for parent in opened
            for token, step in enumerate(case.log_probabilities(parent.tokens))
            for total in (parent.value + step,)
        ]
        best, others = _split(continuations, count)
        ending = [each for each in (*best, *others) if is_last or each.tokens[-1] in stops]
        _demand_decided(best, others, frozenset(each.tokens for each in ending))
        finished += [
            _Candidate(
                each.tokens,
                case.normalized(each.value, length),
                errors.of_score(each.value, length),
            )
            for each in best
            if each in ending
        ]
        finished, dropped = _split(finished, count)
        _demand_decided(finished, dropped)
        if is_last:
            break
        opened, closed = _split([each for each in continuations if each not in ending], count)
        _demand_decided(opened, closed)
        if len(opened) < count:
            raise NotClaimed("there are fewer hypotheses than beams")
        if len(finished) == count and _ends(case, errors, opened[0], finished[-1]):
            break
    return [Hypothesis(each.tokens, each.value) for each in finished]


def _ends(case: BeamCase, errors: Errors, best: _Candidate, worst: _Candidate) -> bool:
    """Return whether a search with enough finished hypotheses ends."""
    rule, length = case.beams.early_stopping, len(best.tokens)
    if rule is EarlyStopping.FULL:
        return True
    if rule is EarlyStopping.NEVER and case.beams.length_penalty > 0:
        length = case.script.max_new_tokens
    reach = case.normalized(best.value, length)
    distance = reach - worst.value
    if abs(distance) <= errors.of_score(best.value, length) + worst.error:
        raise NotClaimed("rounding decides whether the search ends")
    return distance < 0


def _split(candidates: list[_Candidate], count: int) -> tuple[list[_Candidate], list[_Candidate]]:
    """Return the largest candidates, in descending order, and the others."""
    order = sorted(candidates, key=lambda each: -each.value)
    return order[:count], order[count:]


def _demand_decided(
    kept: list[_Candidate],
    others: list[_Candidate],
    among: Collection[tuple[int, ...]] | None = None,
) -> None:
    """Demand that no error can exchange a kept candidate and another one.

    Args:
        kept: candidates.
        others: candidates with smaller values.
        among: only an exchange of one of these tokens matters; None if any does.

    Raises:
        NotClaimed: if errors can exchange two.
    """
    for each, other in itertools.product(kept, others):
        matters = among is None or each.tokens in among or other.tokens in among
        if matters and each.value - other.value <= each.error + other.error:
            raise NotClaimed("two hypotheses lie closer than the errors of their scores")


def most_probable(case: BeamCase) -> list[tuple[int, ...]]:
    """Return all continuations of the full length, the most probable first."""
    every = itertools.product(range(case.script.vocab), repeat=case.script.max_new_tokens)
    return sorted(every, key=lambda tokens: -case.sum(tokens))


def flat(
    *,
    vocab: int = 6,
    beams: int = 2,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC,
    max_new_tokens: int = 4,
    **script: object,
) -> BeamCase:
    """Return a case whose logits lie between 0 and 3."""
    settings = {"levels": 3 * FLAT, "step": FLAT, **script}
    return BeamCase(
        script=ScriptCase(vocab=vocab, max_new_tokens=max_new_tokens, **settings),  # type: ignore[arg-type]
        beams=Beams(beams=beams, length_penalty=length_penalty, early_stopping=early_stopping),
    )


PENALTIES = (-0.5, 0.0, 0.6, 1.0, 2.0)


@st.composite
def _case(draw: st.DrawFn, stops: bool, rules: Sequence[EarlyStopping]) -> BeamCase:
    vocab = draw(st.integers(2, 9))
    ids = st.integers(0, vocab - 1)
    stop_tokens = draw(st.sets(ids, min_size=1, max_size=min(2, vocab - 1))) if stops else set()
    return flat(
        vocab=vocab,
        beams=draw(st.integers(1, min(5, vocab - len(stop_tokens)))),
        length_penalty=draw(st.sampled_from(PENALTIES)),
        early_stopping=draw(st.sampled_from(list(rules))),
        max_new_tokens=draw(st.integers(1, 6)),
        prompt=tuple(draw(st.lists(ids, min_size=1, max_size=4))),
        stop_tokens=tuple(sorted(stop_tokens)),
        seed=draw(st.integers(0, 2**16)),
    )


def beam_cases(
    subject: SamplerImplementation,
    *,
    stops: bool = False,
    rules: Sequence[EarlyStopping] = (EarlyStopping.HEURISTIC,),
) -> st.SearchStrategy[BeamCase]:
    """Return a strategy of the beam searches that a subject supports."""
    return _case(stops, rules).filter(lambda case: subject.supports_beams(case.beams) is None)
