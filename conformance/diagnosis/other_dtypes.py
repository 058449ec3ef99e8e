"""The other storage types in which a failing case passes: a mistake may be of one type alone."""

import dataclasses
import time
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.diagnosis.trial import try_case
from attnspec.conformance.laws.law import Law

PATIENCE = 2.0
"""Seconds after which no further storage type is tried."""


def passing_dtypes(law: Law, subject: Any, case: Any) -> tuple[str, ...]:
    """Return the other storage types in which a law holds on the failing case.

    Args:
        law: the broken law.
        subject: the subject that breaks it: an attention or a GPT-2.
        case: the failing case.

    Returns:
        Names such as `float32`, in the order of the claims. An empty tuple if the case has no
        storage type, if the subject claims one alone, or if the case fails in all of them.
    """
    if not hasattr(case, "but") or not hasattr(case, "dtype"):
        return ()
    claimed = getattr(getattr(subject, "implementation", subject), "dtypes", ())
    started, passing = time.perf_counter(), []
    for dtype in claimed:
        if dtype == case.dtype or time.perf_counter() - started > PATIENCE:
            continue
        other = case.but(dtype=dtype)
        if try_case(law, _copy(subject), other).holds:
            passing.append(str(dtype).removeprefix("torch."))
    return tuple(passing)


def _copy(subject: Any) -> Any:
    """Return a copy of an attention, so that its last call stays that of the failure."""
    return dataclasses.replace(subject) if isinstance(subject, Subject) else subject
