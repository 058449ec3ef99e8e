"""Diagnosis: which planted bugs answer as a broken implementation does.

The first laws that are broken are looked into; how, `attnspec.conformance.likeness` says, and of a
GPT-2 `attnspec.conformance.model_likeness`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnspec.conformance.likeness import resembles
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.spec import ModelImplementation

PATIENCE = 60.0
"""Seconds that a law may have taken for its failure to be looked into."""

TRIES = 5
"""How many failures of one subject are compared with the whole catalogue in vain."""


def diagnosed(record: Record, subject: Any) -> Record:
    """Add to the record of a broken law which planted bugs the subject looks like.

    A bug that was named once is tried alone when the next law breaks, and after a few laws for
    which none could be named no more are looked for: a broken subject breaks many laws.

    Args:
        record: of any outcome and kind of subject; returned as it is where nothing is to be said.
        subject: on which the law has just been tried.
    """
    if record.outcome is Outcome.FAILED and isinstance(subject, ModelImplementation):
        # it takes sentences from here
        from attnspec.conformance.model_diagnosis import model_diagnosed

        return model_diagnosed(record, subject)
    if record.outcome is not Outcome.FAILED or not isinstance(subject, Subject):
        return record
    if record.seconds.get("total", 0.0) > PATIENCE:
        return record
    found = resembles(subject, among=subject.resembled) if subject.resembled else []
    if not found and subject.diagnoses < TRIES:
        subject.diagnoses += 1
        found = resembles(subject)
    if not found:
        return record
    subject.resembled = tuple(found)
    return replace(
        record,
        looks_like=tuple(each.id for each in found),
        message=f"{record.message}\n\n{sentence(found)}",
    )


def sentence(mutants: Sequence[Mutant]) -> str:
    """What a report says: "looks like MSK-01, causal mask aligned upper-left; seen in …"."""
    told = [
        f"{mutant.id}, {mutant.title}" + (f"; seen in {mutant.source}" if mutant.source else "")
        for mutant in mutants
    ]
    return "looks like " + "\n        or ".join(told) if told else ""
