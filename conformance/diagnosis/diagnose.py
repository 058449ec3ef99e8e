"""Diagnosis: the mutants, i.e. planted bugs, that a broken implementation looks like.

Only the first broken laws of a subject are diagnosed. `likeness.attention` compares attentions
with mutants, and `likeness.models` compares GPT-2s.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.diagnosis.likeness.attention import (
    likely_mutants,
    mutants_similar_in_ordinary_calls,
)
from attnspec.conformance.diagnosis.likeness.models import likely_model_mutants
from attnspec.conformance.diagnosis.stages.names import Divergence
from attnspec.conformance.diagnosis.stages.search import (
    first_divergence,
    is_cache_right,
    is_deterministic,
)
from attnspec.conformance.diagnosis.trial import try_case
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.laws.law import Law
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.report.record import BROKEN, Outcome, Record
from attnspec.spec import ModelImplementation

PATIENCE = 60.0
"""Maximum seconds of a law whose failure is diagnosed."""

TRIES = 5
"""Maximum number of comparisons of a subject with the whole catalogue."""

DETERMINISM = "GPT-20"
"""The clause that equal calls give equal logits, without which no other law can be judged."""

REFUSAL_CLAUSES = frozenset({"EMB-3", "EMB-4"})
"""The clauses about ids and positions that a model refuses."""

UNEXPLAINED = REFUSAL_CLAUSES | {DETERMINISM, "GPT-24", "GPT-25", "GPT-26", "GPT-27", "GPT-28"}
"""The clauses about refusals, loading and state, which no stage explains."""


CACHE = "GPT-16"
"""The clause that a cache gives the logits of one call."""

THROUGH_A_CACHE = frozenset(
    {
        "caches-of-one-model-are-independent",
        "a-cache-can-be-continued-twice",
        "later-tokens-of-a-chunk-stay-hidden-however-large-their-scores",
        "cached-padding-stays-hidden",
        "a-prompt-padded-on-the-right-can-be-continued",
        "a-cache-changes-no-token",
        "greedy-generation-equals-hugging-faces",
        # with a cache as well as without
        "given-positions-select-their-rows",
        "masks-of-any-type-hide-the-same",
        "ids-are-read-wherever-they-lie",
        # reads the states without a cache as well, where a wrong stage is found first
        "every-hidden-state-equals-the-oracles",
    }
)
"""The laws about something else that read a model through a cache."""


def with_diagnosis(record: Record, subject: Any, law: Law | None = None) -> Record:
    """Return the record of a broken law with the mutants that its subject looks like.

    A broken subject breaks many laws. So mutants that an earlier diagnosis named are tried alone
    first, and after `TRIES` comparisons with the whole catalogue there are no more.

    Args:
        record: a record of any outcome; returned unchanged without a diagnosis.
        subject: the subject that the law has just been tried on.
        law: the broken law. Where no mutant agrees in the failing call, those that agree in
            ordinary calls are named if they break this law as well. None leaves them out.
    """
    if record.outcome in BROKEN and isinstance(subject, ModelImplementation):
        return with_model_diagnosis(record, subject)
    if record.outcome is not Outcome.FAILED or not isinstance(subject, Subject):
        return record
    if record.seconds.get("total", 0.0) > PATIENCE:
        return record
    mutants = (
        likely_mutants(subject, among=subject.last_diagnosis) if subject.last_diagnosis else []
    )
    if not mutants and subject.diagnoses < TRIES:
        subject.diagnoses += 1
        mutants = likely_mutants(subject)
    if not mutants and law is not None:
        mutants = _mutants_that_break(law, subject)
    if not mutants:
        return record
    subject.last_diagnosis = tuple(mutants)
    return replace(
        record,
        looks_like=tuple(mutant.id for mutant in mutants),
        titles=tuple(mutant.title for mutant in mutants),
        message=f"{record.message}\n\n{looks_like_sentence(mutants)}",
    )


def _mutants_that_break(law: Law, subject: Subject) -> list[Mutant]:
    """Return the mutants that agree with a subject in ordinary calls and break a law as well.

    They are tried with the claims of the subject, under their own profile.
    """
    candidates: Sequence[Mutant] = subject.last_diagnosis
    if not candidates and subject.diagnoses < TRIES:
        subject.diagnoses += 1
        candidates = mutants_similar_in_ordinary_calls(subject)
    return [mutant for mutant in candidates if _breaks(law, subject, mutant)]


def _breaks(law: Law, subject: Subject, mutant: Mutant) -> bool:
    """Return whether a mutant with the claims of a subject breaks a law in one of its own cases."""
    alike = replace(
        subject,
        implementation=replace(
            mutant.subject,
            features=mutant.subject.features & subject.implementation.features,
            dtypes=subject.implementation.dtypes,
        ),
    )
    with restored_state():
        for case in (*law.pinned, *(law.design(alike) if law.design else ())):
            trial = try_case(law, alike, case)
            if trial.was_tried and not trial.holds:
                return isinstance(trial.error, Violation)
    return False


def with_model_diagnosis(record: Record, subject: ModelImplementation) -> Record:
    """Return the record of a broken law with the stage that diverges and the likely mutants.

    The search for the stage and the outputs of the subject are cached for its other broken laws.

    Args:
        record: the record of a law that failed.
        subject: the subject that the law was tried on.
    """
    if record.seconds.get("total", 0.0) > PATIENCE:
        return record
    divergence = None
    if record.outcome is Outcome.FAILED:
        is_refusal = bool(REFUSAL_CLAUSES.intersection(record.clauses))
        divergence = None if is_refusal else first_divergence(subject)
        explanation = divergence if UNEXPLAINED.isdisjoint(record.clauses) else None
        mutants = likely_model_mutants(subject, refusals=is_refusal)
        parts = [record.message]
        if explanation:
            parts.append(str(explanation))
        if mutants:
            parts.append(looks_like_sentence(mutants))
        record = replace(
            record,
            stage=_stage_and_configuration(explanation) if explanation else "",
            looks_like=tuple(mutant.id for mutant in mutants),
            titles=tuple(mutant.title for mutant in mutants),
            message="\n\n".join(parts),
        )
    reason = why_undecided(record, subject, divergence)
    if not reason:
        return record
    return replace(record, outcome=Outcome.NOT_DECIDED, reason=f"not decided: {reason}", stage="")


def _stage_and_configuration(divergence: Divergence) -> str:
    """Return a stage and the configuration of the model in which it diverges."""
    under = f" (in a model of {divergence.configuration})" if divergence.configuration else ""
    return f"{divergence.place}{under}"


def why_undecided(
    record: Record, subject: ModelImplementation, divergence: Divergence | None
) -> str:
    """Return the mistake that explains why a model broke a law about something else, if any.

    A law about one part of a model reads it through all others. So what it finds says nothing if
    equal calls give unequal logits, or if a stage that the law is not about is wrong.
    """
    if DETERMINISM in record.clauses:
        return ""
    if not is_deterministic(subject):
        return f"answers differ from call to call ({DETERMINISM}): is dropout on?"
    if divergence is not None and not divergence.decides(record.clauses):
        return f"{divergence.place} is wrong first"
    if record.law in THROUGH_A_CACHE and not is_cache_right(subject):
        return f"a cache gives other logits than one call ({CACHE}), which is wrong first"
    return ""


def looks_like_sentence(mutants: Sequence[Mutant]) -> str:
    """Return the sentence of a report: "looks like MSK-01, causal mask aligned …; seen in …"."""
    descriptions = [
        f"{mutant.id}, {mutant.title}" + (f"; seen in {mutant.source}" if mutant.source else "")
        for mutant in mutants
    ]
    return "looks like " + "\n        or ".join(descriptions) if descriptions else ""
