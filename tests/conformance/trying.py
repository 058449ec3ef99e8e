"""Laws tried on given cases: what several tests of laws share."""

from collections.abc import Iterable

from attnspec.conformance.law import Law
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case


def pinned_on(law: Law, subject: Subject) -> int:
    """Try the pinned cases of a law; return on how many of them it said something."""
    return said_on(law, subject, law.pinned)


def said_on(law: Law, subject: Subject, cases: Iterable[Case]) -> int:
    """Try some cases of a law; return on how many of them it said something."""
    said = 0
    for case in cases:
        if subject.refuses(case) is None:
            try:
                law.check(subject, case)
            except NotClaimed:
                continue
            said += 1
    return said
