"""Test a subject on features that it does not claim, and should refuse."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison import tally
from attnspec.conformance.comparison.violation import NotClaimed, QualityWarning, Raised, Violation
from attnspec.conformance.laws.law import Law
from attnspec.conformance.report.record import Record
from attnspec.spec import Case, Feature

TRIED = 3
"""Maximum number of pinned cases of a law that are tried."""

NEVER = frozenset({Feature.BACKWARD, Feature.VALIDATES})
"""Features without an argument, which a subject cannot refuse."""


def with_undeclared_features(
    law: Law, subject: Any, record: Record, on_record: Callable[[Record], None] | None = None
) -> Record:
    """Try a law that a subject does not claim, as if it claimed the missing features.

    Args:
        law: the law.
        subject: the subject, which does not claim the law.
        record: the record of the law, which is *not claimed*.
        on_record: called with the record before each call that may crash.

    Returns:
        The record. If the subject accepts a feature and returns a wrong result, `undeclared` says
        so; the outcome stays *not claimed*.
    """
    if not isinstance(subject, Subject):
        return record
    implementation, tried = subject.implementation, 0
    if set(law.needs) - set(Feature) - set(implementation.extras):
        return record  # no argument of a call requests an extra
    for case in law.pinned:
        missing = _missing(law, case, implementation.features)
        if not missing or missing & NEVER:
            continue
        accepted: list[str] = []
        wider = replace(
            implementation,
            features=implementation.features | missing,
            attention=_recording(implementation.attention, missing, accepted),
        )
        claiming = replace(subject, implementation=wider)
        fitted = claiming.fit(case)
        if claiming.refuses(fitted) is not None:
            continue
        names = ", ".join(sorted(missing))
        if on_record is not None:
            on_record(replace(record, undeclared=names))
        try:
            with tally.counting(tally.Tally()):
                law.check(claiming, fitted)
        except QualityWarning:
            pass
        except Violation as error:
            if not accepted:
                continue  # the result is wrong without the feature too
            return replace(record, undeclared=f"{names}: accepted, but wrong: {error}")
        except (Raised, NotClaimed):
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
    Feature.KEY_LENGTHS: "key_lengths",
    Feature.QUERY_OFFSET: "query_offset",
    Feature.LSE: "return_lse",
    Feature.DROPOUT: "dropout_p",
}
"""The argument that requests each feature."""


def _recording(
    attention: Callable[..., Any], missing: frozenset[Feature], accepted: list[str]
) -> Callable[..., Any]:
    """Return the attention, which now adds the arguments that it does not refuse to a list."""
    names = {_ARGUMENTS[feature] for feature in missing}

    def recording(*tensors: Any, **options: Any) -> Any:
        out = attention(*tensors, **options)
        accepted.extend(names & options.keys())
        return out

    return recording


def _missing(law: Law, case: Any, claimed: frozenset[Feature]) -> frozenset[Feature]:
    """Return the features that a law needs on a case and that are not claimed."""
    if not isinstance(case, Case):
        return frozenset()
    needed = {Feature(name) for name in law.needs if name in set(Feature)}
    return frozenset((needed | case.features) - claimed)
