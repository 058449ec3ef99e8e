"""What a subject does with a feature that it does not claim: it should refuse it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnspec.conformance import tally
from attnspec.conformance.law import Law
from attnspec.conformance.record import Record
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import QualityWarning, Violation
from attnspec.spec import Case, Feature

TRIED = 3
"""Pinned cases of a law that are tried at most."""

NEVER = frozenset({Feature.BACKWARD})
"""Features that no argument asks for, so that nothing can be refused."""


def undeclared(
    law: Law, subject: Any, record: Record, told: Callable[[Record], None] | None = None
) -> Record:
    """Try a law that the subject does not claim, on what it would take to claim it.

    Args:
        law: not claimed.
        subject: that does not claim it.
        record: that says so.
        told: is handed the record before a call that may not come back.

    Returns:
        The record; where the subject accepts the feature and gets it wrong, its `undeclared` says
        so. The outcome stays: nothing was promised.
    """
    if not isinstance(subject, Subject):
        return record
    implementation, tried = subject.implementation, 0
    if set(law.needs) - set(Feature) - set(implementation.extras):
        return record  # an extra is nothing that a call could ask for
    for case in law.pinned:
        missing = _missing(law, case, implementation.features)
        if not missing or missing & NEVER:
            continue
        wider = replace(implementation, features=implementation.features | missing)
        widened = replace(subject, implementation=wider)
        if widened.refuses(case) is not None:
            continue
        names = ", ".join(sorted(missing))
        if told is not None:
            told(replace(record, undeclared=names))
        try:
            with tally.counting(tally.Tally()):
                law.check(widened, case)
        except QualityWarning:
            pass
        except Violation as error:
            return replace(record, undeclared=f"{names}: accepted, and wrong: {error}")
        except (Raised, tally.NotClaimed):
            pass
        tried += 1
        if tried == TRIED:
            break
    return record


def _missing(law: Law, case: Any, claimed: frozenset[Feature]) -> frozenset[Feature]:
    """The features that a case would take, and are not claimed."""
    if not isinstance(case, Case):
        return frozenset()
    needed = {Feature(each) for each in law.needs if each in set(Feature)}
    return frozenset((needed | case.features) - claimed)
