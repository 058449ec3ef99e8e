"""Checking from Python: one call in anybody's test suite or notebook."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.claims import Claims
from attnspec.conformance.effort import Effort
from attnspec.conformance.law import Judged
from attnspec.conformance.record import CONFORMING, Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import Judgeable, declare
from attnspec.conformance.trials import Trial, trials
from attnspec.spec import Feature, Implementation


def check_attention(
    attention: Callable[..., Any] | Implementation,
    *,
    features: Iterable[Feature | str] | None = None,
    dtypes: Iterable[torch.dtype] | None = None,
    device: str = "cpu",
    effort: Effort | str = Effort.STANDARD,
    laws: Sequence[str] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> list[Record]:
    """Try every law on an attention function, in this process.

    Args:
        attention: a callable with the contract's parameters, or an `Implementation`.
        features: what a bare callable claims; read from its parameters where not given.
        dtypes: its storage types; found by calling it where not given.
        device: where to draw the cases.
        effort: how hard to look.
        laws: shell patterns of laws, clauses or families; none means all.
        expected_failures: names of laws that are known to fail, each with the reason.

    Returns:
        One record per law. Nothing that the function does raises.

    Raises:
        TargetError: where it accepts no storage type at all.
        ValueError: for a pattern or an expected failure that names no law.
    """
    subject = subject_of(attention, features, dtypes, device)
    found = trials([Judgeable(kind=Judged.ATTENTION, subject=subject)], laws)
    known = dict(expected_failures or {})
    unknown_failures(known, found)
    return [judged_as_known(trial.run(Effort(effort)), known) for trial in found]


def subject_of(
    attention: Callable[..., Any] | Implementation,
    features: Iterable[Feature | str] | None,
    dtypes: Iterable[torch.dtype] | None,
    device: str,
) -> Subject:
    """A callable, with what it seems to claim, or an implementation as it is declared."""
    if isinstance(attention, Implementation):
        return Subject(attention, device=device)
    claims = Claims(
        features=None if features is None else frozenset(map(Feature, features)),
        dtypes=None if dtypes is None else tuple(dtypes),
    )
    declared = declare(getattr(attention, "__name__", "attention"), attention, claims, device)
    return Subject(declared, device=device, is_bare=features is None)


def unknown_failures(known: Mapping[str, str], found: Iterable[Trial]) -> None:
    """Refuse expected failures of laws that are not tried.

    Raises:
        ValueError: naming them.
    """
    unknown = known.keys() - {trial.law.name for trial in found}
    if unknown:
        raise ValueError(f"expected failures of laws that do not run: {', '.join(sorted(unknown))}")


def judged_as_known(record: Record, known: Mapping[str, str]) -> Record:
    """Turn a failure that was announced into an expected one, and its absence into an error."""
    if record.law not in known:
        return record
    failed = record.outcome not in CONFORMING
    outcome = Outcome.EXPECTED_FAILURE if failed else Outcome.UNEXPECTED_PASS
    return replace(record, outcome=outcome, reason=known[record.law])
