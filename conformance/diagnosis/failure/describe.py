"""Describe a failure: the message for people, and the fields of the record."""

import traceback
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Explained, Mismatch, Raised, Violation
from attnspec.conformance.diagnosis.failure.built_model_snippet import built_model_snippet
from attnspec.conformance.diagnosis.failure.error_map import failure_picture
from attnspec.conformance.diagnosis.failure.model_snippet import model_snippet
from attnspec.conformance.diagnosis.failure.operator_snippet import operator_snippet
from attnspec.conformance.diagnosis.failure.snippet import snippet
from attnspec.conformance.laws.law import Law
from attnspec.conformance.models.recording import Recording
from attnspec.conformance.operators.built_model import BuiltModelSubject
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.report.record import lines_of_mismatch
from attnspec.spec import ModelImplementation, clause


def describe(
    law: Law,
    subject: Any,
    case: Any,
    error: BaseException,
    sizes: tuple[str, ...] = (),
    made: Recording | None = None,
) -> dict[str, Any]:
    """Describe a failure: the reason in one line, the full message, the case, and a snippet.

    Args:
        law: the broken law.
        subject: the subject, whose last call is the failing one.
        case: the failing case.
        error: the exception with which the law failed.
        sizes: the sizes that decide whether the law fails, each in a line.
        made: of a model, what the law built and called when it failed.

    Returns:
        The fields `reason`, `message`, `case`, `sizes`, `snippet`, `cause`, `mismatch` and
        `picture` of a record.
    """
    reason = _reason(error)
    code = _snippet(subject, case, error, made)
    lines = [*_clauses(law), "", f"Law      {law.name}: {law.sentence.partition(': ')[2]}"]
    lines += [
        f"Subject  {subject.name}",
        f"Case     {case}",
        *(f"Sizes    {each}" for each in sizes),
    ]
    mismatch = error.mismatch if isinstance(error, Violation) else None
    found = reason if mismatch is None else str(error).partition(f": {mismatch}")[0]
    lines += [f"Found    {found}"]
    if mismatch is not None:
        lines += lines_of_mismatch(mismatch.words())
    if not isinstance(error, Violation | Raised):
        # not an exception of the subject: a law or helper failed, so developers need the traceback
        lines += ["", *"".join(traceback.format_exception(error)).splitlines()[-12:]]
    if code:
        lines += ["", "Reproduce:", *(f"    {line}" for line in code.splitlines())]
    return {
        "reason": reason,
        "message": "\n".join(lines),
        "case": str(case),
        "sizes": sizes,
        "snippet": code,
        "cause": found if isinstance(error, Explained) else "",
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


def _snippet(subject: Any, case: Any, error: BaseException, made: Recording | None) -> str:
    mismatch = error.mismatch if isinstance(error, Violation) else None
    if isinstance(subject, ModelImplementation) and made is not None:
        return model_snippet(subject, made, mismatch, case)
    if isinstance(subject, BuiltModelSubject):
        return built_model_snippet(subject, mismatch)
    if isinstance(subject, OperatorSubject):
        return operator_snippet(subject, mismatch)
    if not isinstance(subject, Subject) or subject.last_call is None:
        return ""
    return snippet(subject, subject.last_call, mismatch, case)
