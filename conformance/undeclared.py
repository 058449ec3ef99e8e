"""What a subject does with a feature that it does not claim: it should refuse it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnspec.conformance import tally
from attnspec.conformance.law import Law
from attnspec.conformance.record import Record
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import QualityWarning, Violation
from attnspec.spec import Case, Feature

TRIED = 3
"""Pinned cases of a law that are tried at most."""

NEVER = frozenset({Feature.BACKWARD})
"""Features that no argument asks for, so that nothing can be refused."""


def undeclared(
    law: Law, subject: Any, record: Record, told: Callable[[Record], None] | None = None
) -> Record:
    """Try a law that the subject does not claim, on what it would take to claim it.

    Args:
        law: not claimed.
        subject: that does not claim it.
        record: that says so.
        told: is handed the record before a call that may not come back.

    Returns:
        The record; where the subject accepts the feature and gets it wrong, its `undeclared` says
        so. The outcome stays: nothing was promised.
    """
    if not isinstance(subject, Subject):
        return record
    implementation, tried = subject.implementation, 0
    if set(law.needs) - set(Feature) - set(implementation.extras):
        return record  # an extra is nothing that a call could ask for
    for case in law.pinned:
        missing = _missing(law, case, implementation.features)
        if not missing or missing & NEVER:
            continue
        accepted: list[str] = []
        wider = replace(
            implementation,
            features=implementation.features | missing,
            attention=_listening(implementation.attention, missing, accepted),
        )
        widened = replace(subject, implementation=wider)
        fitted = widened.fit(case)
        if widened.refuses(fitted) is not None:
            continue
        names = ", ".join(sorted(missing))
        if told is not None:
            told(replace(record, undeclared=names))
        try:
            with tally.counting(tally.Tally()):
                law.check(widened, fitted)
        except QualityWarning:
            pass
        except Violation as error:
            if not accepted:
                continue  # wrong before it was asked for
            return replace(record, undeclared=f"{names}: accepted, and wrong: {error}")
        except (Raised, tally.NotClaimed):
            pass
        tried += 1
        if tried == TRIED:
            break
    return record


_ARGUMENTS = {
    Feature.MASK: "attn_mask",
    Feature.CAUSAL: "is_causal",
    Feature.GQA: "enable_gqa",
    Feature.WINDOW: "window",
    Feature.SOFTCAP: "softcap",
    Feature.SINKS: "sinks",
    Feature.ALIBI: "alibi_slopes",
    Feature.LSE: "return_lse",
    Feature.DROPOUT: "dropout_p",
}
"""What asks for a feature."""


def _listening(
    attention: Callable[..., Any], missing: frozenset[Feature], accepted: list[str]
) -> Callable[..., Any]:
    """The attention, and a list of those arguments that it did not refuse."""
    names = {_ARGUMENTS[each] for each in missing}

    def listening(*given: Any, **options: Any) -> Any:
        out = attention(*given, **options)
        accepted.extend(names & options.keys())
        return out

    return listening


def _missing(law: Law, case: Any, claimed: frozenset[Feature]) -> frozenset[Feature]:
    """The features that a case would take, and are not claimed."""
    if not isinstance(case, Case):
        return frozenset()
    needed = {Feature(each) for each in law.needs if each in set(Feature)}
    return frozenset((needed | case.features) - claimed)
