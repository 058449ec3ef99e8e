"""Describe a failure: the message for people, and the fields of the record."""

import traceback
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Mismatch, Raised, Violation
from attnspec.conformance.diagnosis.failure.error_map import failure_picture
from attnspec.conformance.diagnosis.failure.snippet import snippet
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.record import lines_of_mismatch
from attnspec.spec import clause


def describe(law: Law, subject: Any, case: Any, error: BaseException) -> dict[str, Any]:
    """Describe a failure: the reason in one line, the full message, the case, and a snippet.

    Returns:
        The fields `reason`, `message`, `case`, `snippet`, `mismatch` and `picture` of a record.
    """
    reason = _reason(error)
    code = _snippet(subject, case, error)
    lines = [*_clauses(law), "", f"Law      {law.name}: {law.sentence.partition(': ')[2]}"]
    lines += [f"Subject  {subject.name}", f"Case     {case}"]
    mismatch = error.mismatch if isinstance(error, Violation) else None
    if mismatch is None:
        lines += [f"Found    {reason}"]
    else:
        lines += [
            f"Found    {str(error).partition(': ' + str(mismatch))[0]}",
            *lines_of_mismatch(mismatch.words()),
        ]
    if not isinstance(error, Violation | Raised):
        # not an exception of the subject: a law or helper failed, so developers need the traceback
        lines += ["", *"".join(traceback.format_exception(error)).splitlines()[-12:]]
    if code:
        lines += ["", "Reproduce:", *(f"    {line}" for line in code.splitlines())]
    return {
        "reason": reason,
        "message": "\n".join(lines),
        "case": str(case),
        "snippet": code,
        "mismatch": None if mismatch is None else mismatch.words(),
        "picture": _picture(subject, mismatch),
    }


def _reason(error: BaseException) -> str:
    if isinstance(error, Violation | Raised):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _clauses(law: Law) -> list[str]:
    lines = []
    for identifier in law.clauses:
        try:
            known = clause(identifier)
        except (KeyError, ValueError):
            # a law under development may cite a clause that is not written yet
            lines.append(identifier)
        else:
            lines += [f"{known.id} {known.title}", f"  {known.sentence}"]
    return lines


def _picture(subject: Any, mismatch: Mismatch | None) -> dict[str, Any] | None:
    errors = None if mismatch is None else mismatch.errors
    is_attention = isinstance(subject, Subject)
    return failure_picture(
        errors,
        subject.last_call if is_attention else None,
        subject.implementation.profile if is_attention else None,
    )


def _snippet(subject: Any, case: Any, error: BaseException) -> str:
    if not isinstance(subject, Subject) or subject.last_call is None:
        return ""
    mismatch = error.mismatch if isinstance(error, Violation) else None
    return snippet(subject, subject.last_call, mismatch, case)
