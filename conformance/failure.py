"""Failures: what a person is told when a law is broken."""

import traceback
from typing import Any

from attnspec.conformance.law import Law
from attnspec.conformance.picture import picture
from attnspec.conformance.snippet import snippet
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Mismatch, Violation
from attnspec.spec import clause


def describe(law: Law, subject: Any, case: Any, error: BaseException) -> dict[str, Any]:
    """Say what happened: the reason in a line, the message in full, the case, and a snippet.

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
            f"  where     {mismatch.what}, {mismatch.where} ({mismatch.wrong})",
            f"  expected  {mismatch.expected}",
            f"  got       {mismatch.got}",
            f"  allowed   {mismatch.bound} away",
        ]
    if not isinstance(error, Violation | Raised):
        # Not the subject's own exception: a law or a helper failed, which a developer must see.
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
    told = []
    for identifier in law.clauses:
        try:
            found = clause(identifier)
        except (KeyError, ValueError):
            # A law under development may cite a clause that is not written yet.
            told.append(identifier)
        else:
            told += [f"{found.id} {found.title}", f"  {found.sentence}"]
    return told


def _picture(subject: Any, mismatch: Mismatch | None) -> dict[str, Any] | None:
    errors = None if mismatch is None else mismatch.errors
    is_attention = isinstance(subject, Subject)
    return picture(
        errors,
        subject.last_call if is_attention else None,
        subject.implementation.profile if is_attention else None,
    )


def _snippet(subject: Any, case: Any, error: BaseException) -> str:
    if not isinstance(subject, Subject) or subject.last_call is None:
        return ""
    mismatch = error.mismatch if isinstance(error, Violation) else None
    return snippet(subject, subject.last_call, mismatch, case)
