"""Laws of GEN: beam search."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.text.beams import (
    BeamCase,
    Errors,
    beam_cases,
    expected_hypotheses,
    flat,
    most_probable,
)
from attnspec.spec import (
    Beams,
    EarlyStopping,
    Hypothesis,
    SamplerFeature,
    SamplerImplementation,
)

_NEEDS = frozenset({SamplerFeature.BEAM_SEARCH})


def _search(subject: SamplerImplementation, case: BeamCase) -> list[Hypothesis]:
    """Return the hypotheses of a subject.

    Raises:
        NotClaimed: if the subject does not support the settings.
        Violation: if the result has another number of hypotheses, or one that cannot be.
    """
    reason = subject.supports_beams(case.beams)
    if reason is not None:
        raise NotClaimed(reason)
    if subject.beam_search is None:
        raise NotClaimed("feature not claimed: beam_search")
    script = case.script
    found = list(
        subject.beam_search(
            script.next_logits,
            list(case.prompt),
            max_new_tokens=script.max_new_tokens,
            beams=case.beams,
            stop_tokens=frozenset(script.stop_tokens),
        )
    )
    for each in found:
        _check_form(case, each)
    tokens = [tuple(each.tokens) for each in found]
    if len(set(tokens)) != case.beams.beams or len(tokens) != case.beams.beams:
        raise Violation(f"{case.beams.beams} different hypotheses must be found, got {tokens}")
    return [Hypothesis(tuple(each.tokens), float(each.score)) for each in found]


def _check_form(case: BeamCase, found: object) -> None:
    if not isinstance(found, Hypothesis) or not all(
        isinstance(token, int) and 0 <= token < case.script.vocab for token in found.tokens
    ):
        raise Violation(f"a beam search gives hypotheses of ids, got {found!r}")
    *before, last = found.tokens or (None,)
    if any(token in case.script.stop_tokens for token in before):
        raise Violation(f"a hypothesis ends with its first stop token, got {found.tokens}")
    is_whole = len(found.tokens) == case.script.max_new_tokens
    if not is_whole and last not in case.script.stop_tokens:
        raise Violation(
            f"a hypothesis has {case.script.max_new_tokens} tokens or ends by a stop token, got "
            f"{found.tokens}"
        )


def _check_against_definition(subject: SamplerImplementation, case: BeamCase) -> None:
    expected = expected_hypotheses(case, subject.beam_dtype)
    found = _search(subject, case)
    if {each.tokens for each in found} != {each.tokens for each in expected}:
        raise Violation(f"a beam search must find {_written(expected)}, got {_written(found)}")


def _written(hypotheses: Sequence[Hypothesis]) -> str:
    return ", ".join(f"{list(each.tokens)} ({each.score:.6g})" for each in hypotheses)


@law(
    "GEN-15",
    pinned=[
        flat(max_new_tokens=1),
        flat(beams=3, max_new_tokens=2),
        flat(vocab=9, beams=4, max_new_tokens=5, prompt=(3, 1), seed=1),
        flat(vocab=9, beams=2, max_new_tokens=6, prompt=(8, 0, 8), seed=2),
        flat(vocab=8, beams=5, max_new_tokens=4, seed=3),
        flat(vocab=8, beams=3, max_new_tokens=5, length_penalty=0.0, seed=4),
    ],
    explore=beam_cases,
    needs=_NEEDS,
)
def law_beam_search_keeps_the_best_continuations(
    subject: SamplerImplementation, case: BeamCase
) -> None:
    """GEN-15: at each step the most probable continuations of all open hypotheses stay open."""
    _check_against_definition(subject, case)


@law(
    "GEN-15",
    pinned=[
        flat(vocab=vocab, beams=vocab**length, max_new_tokens=length, seed=seed)
        for vocab, length in ((2, 2), (3, 2), (2, 4), (3, 3))
        for seed in range(2)
    ],
    needs=_NEEDS,
)
def law_a_beam_wide_enough_finds_the_most_probable(
    subject: SamplerImplementation, case: BeamCase
) -> None:
    """GEN-15: with as many beams as there are texts, the most probable text comes first."""
    found = _search(subject, case)[0].tokens
    best, second = most_probable(case)[:2]
    error = 2 * Errors(case, subject.beam_dtype).of_sum(case.sum(second), len(best))
    if case.sum(best) - case.sum(found) > error:
        raise Violation(
            f"the most probable text is {list(best)}, with ln p = {case.sum(best):.6g}; the search "
            f"gave {list(found)}, with {case.sum(found):.6g}"
        )


@law(
    "GEN-16",
    pinned=[
        *(flat(length_penalty=penalty) for penalty in (0.0, 1.0, 2.0, 0.6, -0.5)),
        flat(vocab=9, beams=4, max_new_tokens=5, prompt=(3, 1, 4), seed=1),
        *(
            flat(vocab=5, beams=3, max_new_tokens=6, stop_tokens=(seed,), prompt=(0, 2), seed=seed)
            for seed in range(5)
        ),
    ],
    explore=lambda subject: beam_cases(subject, stops=True),
    needs=_NEEDS,
)
def law_a_score_is_the_sum_of_log_probabilities_over_the_length(
    subject: SamplerImplementation, case: BeamCase
) -> None:
    """GEN-16: a score is the sum of log-probabilities over a power of the number of new tokens."""
    found = _search(subject, case)
    errors = Errors(case, subject.beam_dtype)
    tolerances = []
    for each in found:
        expected = case.score(each.tokens)
        tolerance = errors.of_score(case.sum(each.tokens), len(each.tokens))
        if not abs(each.score - expected) <= tolerance:
            raise Violation(
                f"the score of {list(each.tokens)} must be {expected:.9g}, got {each.score:.9g}, "
                f"allowed distance {tolerance:.3g}"
            )
        tally.record_fraction(abs(each.score - expected) / tolerance)
        tolerances.append(tolerance)
    scores = [each.score for each in found]
    if scores != sorted(scores, reverse=True):
        raise Violation(f"the best hypothesis comes first, got {_written(found)}")


@law(
    "GEN-17",
    pinned=[
        *(
            flat(vocab=5, beams=2, max_new_tokens=5, stop_tokens=(seed % 5,), seed=seed)
            for seed in range(8)
        ),
        flat(vocab=7, beams=3, max_new_tokens=5, stop_tokens=(1, 4), seed=1),
        flat(vocab=7, beams=4, max_new_tokens=6, stop_tokens=(2, 3), length_penalty=0.0, seed=2),
        flat(vocab=6, beams=3, max_new_tokens=4, stop_tokens=(0,), prompt=(0, 1), seed=3),
    ],
    explore=lambda subject: beam_cases(subject, stops=True),
    needs=_NEEDS,
)
def law_a_stop_token_finishes_a_hypothesis(subject: SamplerImplementation, case: BeamCase) -> None:
    """GEN-17: a hypothesis that ends in a stop token is finished, and another takes its place."""
    _check_against_definition(subject, case)


@law(
    "GEN-18",
    pinned=[
        flat(
            vocab=5,
            beams=2,
            max_new_tokens=6,
            stop_tokens=(1, 3),
            length_penalty=penalty,
            early_stopping=rule,
            seed=seed,
        )
        for rule in EarlyStopping
        for penalty in (1.0, 0.0, 2.0)
        for seed in range(6)
    ],
    explore=lambda subject: beam_cases(subject, stops=True, rules=tuple(EarlyStopping)),
    needs=_NEEDS,
)
def law_a_beam_search_ends_by_its_rule(subject: SamplerImplementation, case: BeamCase) -> None:
    """GEN-18: a beam search with enough finished hypotheses ends as its rule says."""
    _check_against_definition(subject, case)


@law(
    "GEN-19",
    pinned=[
        flat(beams=1),
        *(
            flat(
                vocab=4,
                beams=1,
                max_new_tokens=6,
                length_penalty=penalty,
                stop_tokens=(seed % 4,),
                seed=seed,
            )
            for penalty in (1.0, 2.0)
            for seed in range(6)
        ),
        flat(vocab=7, beams=1, stop_tokens=(0, 2), early_stopping=EarlyStopping.FULL, seed=1),
        *(
            flat(
                vocab=4,
                beams=1,
                max_new_tokens=6,
                length_penalty=0.0,
                stop_tokens=(seed % 4,),
                early_stopping=EarlyStopping.NEVER,
                seed=seed,
            )
            for seed in range(3)
        ),
    ],
    explore=lambda subject: beam_cases(subject, stops=True).map(
        lambda case: replace(case, beams=replace(case.beams, beams=1))
    ),
    needs=_NEEDS,
)
def law_a_beam_of_one_is_greedy(subject: SamplerImplementation, case: BeamCase) -> None:
    """GEN-19: a beam search with one beam gives the tokens of greedy generation."""
    (found,) = _search(subject, case)
    expected = case.script.greedy()
    for step in range(len(expected)):
        logits = case.script.next_logits([*case.prompt, *expected[:step]]).tolist()
        if logits.count(max(logits)) > 1:
            raise NotClaimed("two logits tie, and either token may come")
    tokens = list(found.tokens)
    if tokens[-1] in case.script.stop_tokens:
        tokens.pop()
    if tokens != expected:
        raise Violation(
            f"one beam must give the tokens {expected} of greedy generation, got {tokens}"
        )


@law(
    "GEN-20",
    pinned=[
        BeamCase(script=flat().script, beams=beams)
        for beams in (
            Beams(beams=0),
            Beams(beams=-1),
            *(Beams(beams=2, length_penalty=value) for value in (math.nan, math.inf, -math.inf)),
        )
    ],
    needs=_NEEDS,
)
def law_settings_of_beam_search_out_of_range_are_refused(
    subject: SamplerImplementation, case: BeamCase
) -> None:
    """GEN-20: a number of beams or a length penalty out of range is refused by name."""
    if subject.beam_search is None:
        raise NotClaimed("feature not claimed: beam_search")
    name = "beams" if case.beams.beams < 1 else "length_penalty"
    logits = torch.zeros(case.script.vocab, dtype=torch.float64)
    try:
        result = subject.beam_search(lambda ids: logits, [0], max_new_tokens=2, beams=case.beams)
    except ValueError as error:
        if name not in str(error):
            raise Violation(f"the error does not name {name}: {error}") from error
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        raise Violation(f"{case.beams} must raise ValueError, got {raised}") from error
    else:
        raise Violation(f"{case.beams} must be refused, got {result}")
