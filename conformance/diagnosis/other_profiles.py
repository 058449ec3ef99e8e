"""Other profiles: find one under which a law would hold on its failing case.

Few users read about profiles before their first run. If an attention rounds its scores on purpose,
the failure names the profile to declare.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import QualityWarning
from attnspec.conformance.laws.law import Law
from attnspec.spec import (
    EmptyRow,
    Profile,
    RoundingLevel,
)

PATIENCE = 2.0
"""Seconds after which no further profile is tried."""


def holds_under(law: Law, subject: Any, case: Any) -> str:
    """Return the one other answer of a profile under which a law would hold on a case.

    Args:
        law: the broken law.
        subject: the subject that breaks it.
        case: the failing case.

    Returns:
        The answer as an argument of `--profile`, such as `rounding=eager`: the narrowest level of
        rounding that suffices. An empty string if no single answer does.
    """
    if not isinstance(subject, Subject):
        return ""
    started = time.perf_counter()
    for argument, profile in _other_profiles(subject.implementation.profile):
        if time.perf_counter() - started > PATIENCE:
            break
        other = replace(subject, implementation=replace(subject.implementation, profile=profile))
        try:
            with tally.counting(tally.Tally()):
                law.check(other, case)
        except QualityWarning:
            return argument
        except Exception:
            continue
        return argument
    return ""


def under(subject: Subject, argument: str) -> Subject:
    """Return a subject with one other answer of its profile, as `holds_under` names it."""
    profile = dict(_other_profiles(subject.implementation.profile))[argument]
    return replace(subject, implementation=replace(subject.implementation, profile=profile))


def holds_under_sentence(argument: str) -> str:
    """Return the sentence of a failure message."""
    return f"Profile  this case would hold under {argument}: declare it if this is intended"


def _other_profiles(profile: Profile) -> Iterator[tuple[str, Profile]]:
    """Yield all profiles that differ in one answer; of rounding levels, only wider ones."""
    # first what concerns fewest calls: a call of one query also agrees with the other alignment
    order = {"causal_single_query": -1}
    if profile.empty_row is not EmptyRow.ZERO:
        # an answer that was declared for all calls may be wrong for those with a mask alone
        order["empty_row"] = 1
    for name in sorted(profile.QUESTIONS, key=lambda name: order.get(name, 0)):
        for answer in profile.QUESTIONS[name]:
            if answer is not getattr(profile, name):
                changed: dict[str, Any] = {name: answer}
                yield f"{name}={answer}", replace(profile, **changed)
    levels = list(RoundingLevel)
    for level in levels[levels.index(profile.rounding.level) + 1 :]:
        rounding = replace(profile.rounding, level=level)
        yield f"rounding={level}", replace(profile, rounding=rounding)
