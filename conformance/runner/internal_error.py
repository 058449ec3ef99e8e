"""Internal errors: exceptions of attnspec itself, which say nothing about the subject."""

import traceback
from typing import Any

from attnspec.conformance.comparison.violation import QualityWarning, Raised, Violation
from attnspec.conformance.diagnosis.smaller.correct import correct_counterpart
from attnspec.conformance.diagnosis.trial import try_case
from attnspec.conformance.isolation.memory import is_exhausted
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.task import Task


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as text."""
    return "".join(traceback.format_exception(error)).rstrip()


def is_internal(law: Law, subject: Any, case: Any, error: BaseException) -> bool:
    """Return whether an exception with which a law ended is a mistake of attnspec.

    A law may raise over what a subject returned, such as a string. It is a mistake of the law if
    it raises over a correct counterpart of the subject as well, or before any case.

    Args:
        law: the law.
        subject: the subject on which it was tried.
        case: the failing case; None if there was none yet.
        error: the exception.
    """
    if isinstance(error, Violation | Raised | QualityWarning) or not isinstance(error, Exception):
        return False
    if is_exhausted(f"{type(error).__name__}: {error}"):
        return False
    if case is None:
        return True
    correct = correct_counterpart(subject)
    return correct is not None and type(try_case(law, correct, case).error) is type(error)


def internal_error(task: Task, trace: str, case: str = "") -> Record:
    """Return the record of a law that attnspec could not judge.

    Args:
        task: the law and the subject.
        trace: the traceback.
        case: the case in words, if one was tried.
    """
    reason = trace.splitlines()[-1] if trace else "no traceback"
    return Record(
        subject=task.subject.name,
        law=task.law.name,
        clauses=task.law.clauses,
        outcome=Outcome.INTERNAL_ERROR,
        reason=reason,
        message="\n".join(
            [
                f"Law      {task.law.name}",
                f"Subject  {task.subject.name}",
                f"Case     {case}",
                "",
                trace,
            ]
        ),
        case=case,
    )
