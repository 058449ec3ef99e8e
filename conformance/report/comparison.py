"""Compare runs: how the outcomes, accuracy and time of the last differ from the first."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from attnspec.conformance.report.file import Report
from attnspec.conformance.report.matrix import worst
from attnspec.conformance.report.record import BROKEN, Outcome, Record
from attnspec.conformance.report.text import order_of_clauses
from attnspec.conformance.report.view import Badge, facts, subjects_of

NOTABLE = 1.25
"""Factor by which a worst fraction of a bound must change to be listed."""


class Kind(StrEnum):
    """The change of a law's outcome from the first run to the last."""

    BROKEN = "newly broken"
    BROKEN_AND_NEW = "broken, and not in the first"
    MENDED = "mended"
    STILL_BROKEN = "still broken"
    OTHER = "changed otherwise"
    NEW = "not in the first"
    GONE = "not in the last"


LISTED = tuple(Kind)
"""The kinds in the order in which they are listed."""

Key = tuple[str, str, str]
"""Subject, law, and the link of a known deviation."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A law on a subject whose outcome differs between runs, or is broken in the last.

    Attributes:
        kind: the change from the first run to the last.
        subject: name of the subject.
        law: name of the law.
        clauses: the clauses that the law enforces.
        badges: the outcome in each run; `None` if the law was not tried.
        reason: the reason in the last run that broke the law, else in the last that tried it.
    """

    kind: Kind
    subject: str
    law: str
    clauses: tuple[str, ...]
    badges: tuple[Badge | None, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The worst fraction of a law's bound in each run."""

    subject: str
    law: str
    fractions: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side.

    Attributes:
        facts: the values of each header entry, by name; empty strings for runs without it.
        changes: the changed outcomes, the gravest first.
        accuracy: the notable changes of accuracy, the largest first.
        seconds: for each subject, the time of the laws that every run tried, in each run.
        partial: the positions of incomplete runs.
        same: number of pairs of law and subject with the same outcome in all runs.
    """

    facts: tuple[tuple[str, tuple[str, ...]], ...]
    changes: tuple[Change, ...]
    accuracy: tuple[Accuracy, ...]
    seconds: tuple[tuple[str, tuple[float, ...]], ...]
    partial: tuple[int, ...]
    same: int

    @property
    def verdict(self) -> str:
        """The counts of changes in one sentence."""
        counts = [(kind, sum(change.kind is kind for change in self.changes)) for kind in LISTED]
        changed = [f"{count} {kind}" for kind, count in counts if count]
        return ", ".join([*changed, f"{self.same} the same"])


def compare_reports(reports: Sequence[Report]) -> Comparison:
    """Compare reports, matching their records by law and subject.

    If each report is of a single subject, records are matched by law alone.

    Args:
        reports: two or more, the oldest first.
    """
    tables = _tables(reports)
    keys = list(dict.fromkeys(key for table in tables for key in table))
    order = order_of_clauses()
    changes, accuracy, same = [], [], 0
    for key in keys:
        by_run = [table.get(key) for table in tables]
        change = _change(key, by_run)
        if change is None:
            same += 1
        else:
            changes.append(change)
        change_of_accuracy = _accuracy(key, by_run)
        if change_of_accuracy is not None:
            accuracy.append(change_of_accuracy)

    def place(change: Change) -> tuple[int, str, int]:
        first = change.clauses[0] if change.clauses else ""
        return (LISTED.index(change.kind), change.subject, order.get(first, len(order)))

    return Comparison(
        facts=_facts(reports),
        changes=tuple(sorted(changes, key=place)),
        accuracy=tuple(sorted(accuracy, key=_ratio, reverse=True)),
        seconds=_seconds(tables),
        partial=tuple(
            number
            for number, report in enumerate(reports)
            if report.run is not None and not report.run.is_complete
        ),
        same=same,
    )


def _tables(reports: Sequence[Report]) -> list[dict[Key, list[Record]]]:
    """Return the records of each report by subject, law and link."""
    subjects = [subjects_of(report.records) for report in reports]
    are_single = all(len(names) == 1 for names in subjects)
    are_renamed = are_single and len({names[0] for names in subjects}) > 1
    common = " → ".join(names[0] for names in subjects) if are_renamed else ""
    tables = []
    for report in reports:
        table: dict[Key, list[Record]] = {}
        for record in report.records:
            table.setdefault((common or record.subject, record.law, record.link), []).append(record)
        tables.append(table)
    return tables


def _change(key: Key, by_run: Sequence[list[Record] | None]) -> Change | None:
    """Return the change of a law; None if its outcome is the same everywhere and not broken."""
    outcomes = [
        worst(record.outcome for record in records) if records else None for records in by_run
    ]
    first, last = outcomes[0], outcomes[-1]
    was_broken = _is_broken(first)
    if not was_broken and len(set(outcomes)) == 1:
        return None
    if _is_broken(last):
        kind = Kind.STILL_BROKEN if was_broken else Kind.BROKEN if first else Kind.BROKEN_AND_NEW
    elif last is None:
        kind = Kind.GONE
    elif first is None:
        kind = Kind.NEW
    else:
        kind = Kind.MENDED if was_broken else Kind.OTHER
    failures = [
        record for records in by_run for record in records or () if _is_broken(record.outcome)
    ]
    newest = next(records[0] for records in reversed(by_run) if records)
    return Change(
        kind=kind,
        subject=key[0],
        law=key[1],
        clauses=newest.clauses,
        badges=tuple(None if outcome is None else Badge(outcome=outcome) for outcome in outcomes),
        reason=failures[-1].reason if failures else newest.reason,
    )


def _is_broken(outcome: Outcome | None) -> bool:
    return outcome in BROKEN


def _accuracy(key: Key, by_run: Sequence[list[Record] | None]) -> Accuracy | None:
    """Return the fractions of the bound, or None if first and last are close or mere noise."""
    fractions = [
        max((record.worst for record in records or () if record.worst is not None), default=None)
        for records in by_run
    ]
    accuracy = Accuracy(subject=key[0], law=key[1], fractions=tuple(fractions))
    largest = max(fractions[0] or 0.0, fractions[-1] or 0.0)
    return accuracy if _ratio(accuracy) >= NOTABLE and largest >= 0.01 else None


def _ratio(accuracy: Accuracy) -> float:
    """Return the factor, at least 1, between the first and the last fraction."""
    first, last = accuracy.fractions[0], accuracy.fractions[-1]
    if first is None or last is None or first == last:
        return 1.0
    small, large = sorted((first, last))
    return float("inf") if small == 0 else large / small


def _seconds(
    tables: Sequence[dict[Key, list[Record]]],
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Return the time of each subject, summed over the laws that all runs tried."""
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    sums: dict[str, list[float]] = {}
    for key in shared:
        row = sums.setdefault(key[0], [0.0] * len(tables))
        for number, table in enumerate(tables):
            row[number] += sum(record.seconds.get("total", 0.0) for record in table[key])
    return tuple((subject, tuple(row)) for subject, row in sums.items())


def _facts(reports: Sequence[Report]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    by_run = [dict(facts(report.run)) if report.run else {} for report in reports]
    names = dict.fromkeys(name for values in by_run for name in values)
    return tuple((name, tuple(values.get(name, "") for values in by_run)) for name in names)
