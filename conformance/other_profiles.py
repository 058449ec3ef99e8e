"""Other profiles: under which of them a case that breaks a law would hold.

Nobody reads about profiles before a first run. Whoever wrote an attention that rounds its scores
is told at once what to declare, if that is what it is meant to do.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attnspec.conformance import tally
from attnspec.conformance.law import Law
from attnspec.conformance.subject import Subject
from attnspec.conformance.violation import QualityWarning
from attnspec.spec import CausalAlignment, EmptyRow, MaskedNonfinite, Profile, RoundingLevel

PATIENCE = 2.0
"""Seconds after which no more profiles are tried."""

_ENUMERATED = {
    "causal_alignment": CausalAlignment,
    "empty_row": EmptyRow,
    "masked_nonfinite": MaskedNonfinite,
}


def holds_under(law: Law, subject: Any, case: Any) -> str:
    """Name one other answer under which a case that breaks a law would not.

    Args:
        law: that is broken.
        subject: by whom.
        case: in which case.

    Returns:
        As `--profile` takes it, such as `rounding=eager`: the narrowest level of rounding that
        does; nothing where no single answer does.
    """
    if not isinstance(subject, Subject):
        return ""
    started = time.perf_counter()
    for words, profile in _others(subject.implementation.profile):
        if time.perf_counter() - started > PATIENCE:
            break
        other = replace(subject, implementation=replace(subject.implementation, profile=profile))
        try:
            with tally.counting(tally.Tally()):
                law.check(other, case)
        except QualityWarning:
            return words
        except Exception:
            continue
        return words
    return ""


def sentence(words: str) -> str:
    """What a failure says of it."""
    return f"Profile  this case would hold under {words}: declare it, if that is what is meant"


def _others(profile: Profile) -> Iterator[tuple[str, Profile]]:
    """Every profile that differs in one answer, and promises less in how it rounds."""
    for name, answers in _ENUMERATED.items():
        for answer in answers:
            if answer is not getattr(profile, name):
                changed: dict[str, Any] = {name: answer}
                yield f"{name}={answer}", replace(profile, **changed)
    levels = list(RoundingLevel)
    for level in levels[levels.index(profile.rounding.level) + 1 :]:
        rounding = replace(profile.rounding, level=level)
        yield f"rounding={level}", replace(profile, rounding=rounding)
