"""A smaller failure: the smallest case found that breaks a law, with the sizes that matter."""

import re
from dataclasses import replace
from typing import Any

from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.diagnosis.failure.describe import describe
from attnspec.conformance.diagnosis.other_profiles import under
from attnspec.conformance.diagnosis.smaller.correct import correct_counterpart
from attnspec.conformance.diagnosis.smaller.neighbours import compared_sizes
from attnspec.conformance.diagnosis.smaller.shrink import shrink
from attnspec.conformance.diagnosis.torch_products import spoiled_products
from attnspec.conformance.diagnosis.trial import try_case
from attnspec.conformance.isolation.memory import is_exhausted
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.record import Record

SHRINKING = 2.0
"""Seconds in which a smaller case is sought."""

COMPARING = 1.0
"""Seconds in which its sizes are compared with their neighbours."""

_NUMBER = re.compile(r"[-+]?\d[\d.e+-]*|\binf\b|\bnan\b")


def with_smaller_case(law: Law, subject: Any, case: Any, record: Record) -> Record:
    """Return the record of a broken law with the smallest case found, and the sizes that matter.

    A smaller case counts if the law fails on it in the same way, if the law holds there for a
    correct counterpart of the subject, and for the subject itself under the profile or with the
    products of torch that explain the failure, if any.

    Args:
        law: the broken law.
        subject: the subject that breaks it on the case every time.
        case: the failing case.
        record: the record with its explanation; returned unchanged if the case cannot be shrunk.
    """
    correct = correct_counterpart(subject)
    if correct is None or is_exhausted(record.reason):
        return record
    first = try_case(law, subject, case)
    if not isinstance(first.error, Violation | Raised):
        return record
    message = describe(law, subject, case, first.error, made=first.made)["message"]
    remarks = record.message.removeprefix(message)
    if remarks == record.message:
        return record  # it is described by what is no longer known
    must_hold = [correct]
    if record.holds_under:
        must_hold.append(under(subject, record.holds_under))

    def fails(other: Any) -> bool:
        trial = try_case(law, subject, other)
        return (
            _kind(trial.error) == _kind(first.error)
            and all(try_case(law, each, other).holds for each in must_hold)
            and (not record.torch_bug or bool(spoiled_products(law, subject, other)))
        )

    def is_wrong(other: Any) -> bool | None:
        trial = try_case(law, subject, other)
        if trial.holds or not trial.was_tried:
            return False if trial.was_tried else None
        return True if try_case(law, correct, other).holds else None

    smallest = shrink(case, fails, SHRINKING)
    sizes = compared_sizes(smallest, is_wrong, COMPARING)
    last = try_case(law, subject, smallest)  # the last call of the subject is this one again
    if last.error is None or _kind(last.error) != _kind(first.error):
        return record
    fields = describe(law, subject, smallest, last.error, sizes, last.made)
    return replace(record, **fields | {"message": fields["message"] + remarks})


def _kind(error: Exception | None) -> tuple[Any, ...]:
    """Return what two failures of one kind have in common: their texts without the numbers."""
    mismatch = error.mismatch if isinstance(error, Violation) else None
    text = str(error).partition(f": {mismatch}")[0].partition("\n")[0]
    what = "" if mismatch is None else _NUMBER.sub("", mismatch.what)
    return type(error), _NUMBER.sub("", text), what
