"""Laws tried on given cases: what several tests of laws share."""

from collections.abc import Iterable
from typing import Any

from attnspec.conformance.law import Law
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed


def pinned_on(law: Law, subject: Any) -> int:
    """Try the pinned cases that are claimed; return on how many of them a law said something."""
    cases = law.pinned
    if isinstance(subject, Subject):
        cases = [case for case in cases if subject.refuses(case) is None]
    return said_on(law, subject, cases)


def said_on(law: Law, subject: Any, cases: Iterable[Any]) -> int:
    """Try some cases of a law; return on how many of them it said something."""
    said = 0
    for case in cases:
        try:
            law.check(subject, case)
        except NotClaimed:
            continue
        said += 1
    return said
