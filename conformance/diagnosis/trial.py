"""A trial: one law on one case, with its outcome as data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed, QualityWarning
from attnspec.conformance.diagnosis.refused_combinations import refused_combination
from attnspec.conformance.laws.law import Law
from attnspec.conformance.models.recording import Recording, recording
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec import Deviation


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of a law on one case.

    Attributes:
        refusal: the reason why the case was not tried; empty for a known deviation, which is tried
            separately; None if it was tried.
        is_missing: true if the case was not tried because this machine lacks something.
        error: the exception with which the law failed, if it did.
        made: what the law built and called of a model, if it failed.
    """

    refusal: str | None = None
    is_missing: bool = False
    error: Exception | None = None
    made: Recording | None = None

    @property
    def was_tried(self) -> bool:
        """False if the subject does not claim the case."""
        return self.refusal is None

    @property
    def holds(self) -> bool:
        """True if the case was tried and the law holds, with a quality warning or without."""
        return self.was_tried and (self.error is None or isinstance(self.error, QualityWarning))


def try_case(
    law: Law,
    subject: Any,
    case: Any,
    count: tally.Tally | None = None,
    on_case: Callable[[Any], None] | None = None,
) -> Trial:
    """Try a law on one case, if the subject claims it.

    Args:
        law: the law.
        subject: of the kind that the law judges.
        case: the case.
        count: to which the trial is added; by default it is counted nowhere.
        on_case: called with the case before it is tried, and not if it is refused.
    """
    if isinstance(subject, Subject | OperatorSubject):
        reason = subject.refuses(case)
        if reason is not None:
            return Trial(refusal=reason)
    if isinstance(subject, Subject):
        known = deviations(law, subject)
        if any(each.affects(case) for each in known):
            return Trial(refusal="")
    if on_case is not None:
        on_case(case)
    made: Recording | None = None
    try:
        with tally.counting(count or tally.Tally()), recording() as made:
            law.check(subject, case)
    except NotClaimed as refusal:
        return Trial(refusal=str(refusal), is_missing=isinstance(refusal, NotAvailable))
    except Exception as error:
        combination = refused_combination(subject, error)
        if combination is not None:
            return Trial(refusal=combination)
        return Trial(error=error, made=made)
    return Trial()


def deviations(law: Law, subject: Any) -> list[Deviation]:
    """List the known deviations of a subject from a law."""
    implementation = getattr(subject, "implementation", None)
    return [each for each in getattr(implementation, "deviations", ()) if each.law == law.name]
