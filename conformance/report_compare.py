"""Comparison: what differs between runs, from the first to the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from attnspec.conformance.matrix import worst
from attnspec.conformance.record import CONFORMING, Outcome, Record
from attnspec.conformance.report_file import Report
from attnspec.conformance.report_text import order_of_clauses
from attnspec.conformance.report_view import Badge, facts, subjects_of

NOTABLE = 1.25
"""By which factor a fraction of a bound differs to be listed."""


class Kind(StrEnum):
    """How a law fared in the last run against the first."""

    BROKEN = "newly broken"
    BROKEN_AND_NEW = "broken, and not in the first"
    MENDED = "mended"
    STILL_BROKEN = "still broken"
    OTHER = "changed otherwise"
    NEW = "not in the first"
    GONE = "not in the last"


LISTED = tuple(Kind)
"""The kinds in the order of telling."""

Key = tuple[str, str, str]
"""Subject, law, and the link of a known deviation."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One law on one subject, whose outcome is not the same in all runs.

    Attributes:
        kind: of the last run against the first.
        subject: its name.
        law: its name.
        clauses: those that it enforces.
        badges: its outcome in each run; `None` where it was not tried.
        reason: why it broke, from the last run that says so.
    """

    kind: Kind
    subject: str
    law: str
    clauses: tuple[str, ...]
    badges: tuple[Badge | None, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The worst fractions of a bound in each run, where they differ much."""

    subject: str
    law: str
    fractions: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side.

    Attributes:
        facts: how each was made, by name; an empty string where a run does not say.
        changes: what became different, the gravest first.
        accuracy: what became more or less accurate, the largest change first.
        seconds: per subject, the time of all laws that every run tried, in each run.
        partial: the places of runs that were not complete.
        same: how many pairs of law and subject came out alike in all runs.
    """

    facts: tuple[tuple[str, tuple[str, ...]], ...]
    changes: tuple[Change, ...]
    accuracy: tuple[Accuracy, ...]
    seconds: tuple[tuple[str, tuple[float, ...]], ...]
    partial: tuple[int, ...]
    same: int

    @property
    def verdict(self) -> str:
        """The comparison in a sentence."""
        counts = [(each, sum(change.kind is each for change in self.changes)) for each in LISTED]
        told = [f"{count} {kind}" for kind, count in counts if count]
        return ", ".join([*told, f"{self.same} the same"])


def compare(reports: Sequence[Report]) -> Comparison:
    """Compare reports; where each is of one subject alone, whatever its name, by law.

    Args:
        reports: two or more, the oldest first.
    """
    tables = _tables(reports)
    keys = list(dict.fromkeys(key for table in tables for key in table))
    order = order_of_clauses()
    changes, accuracy, same = [], [], 0
    for key in keys:
        found = [table.get(key) for table in tables]
        change = _change(key, found)
        if change is None:
            same += 1
        else:
            changes.append(change)
        different = _accuracy(key, found)
        if different is not None:
            accuracy.append(different)

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
            for number, each in enumerate(reports)
            if each.run is not None and not each.run.is_complete
        ),
        same=same,
    )


def _tables(reports: Sequence[Report]) -> list[dict[Key, list[Record]]]:
    """The records of each report by what they are of."""
    names = [subjects_of(each.records) for each in reports]
    alone = all(len(each) == 1 for each in names) and len({each[0] for each in names}) > 1
    common = " → ".join(each[0] for each in names) if alone else ""
    tables = []
    for report in reports:
        table: dict[Key, list[Record]] = {}
        for record in report.records:
            table.setdefault((common or record.subject, record.law, record.link), []).append(record)
        tables.append(table)
    return tables


def _change(key: Key, found: Sequence[list[Record] | None]) -> Change | None:
    """What became of a law, or nothing where it kept its outcome and was never broken."""
    outcomes = [worst(each.outcome for each in some) if some else None for some in found]
    first, last = outcomes[0], outcomes[-1]
    was, now = _is_broken(first), _is_broken(last)
    if not was and len(set(outcomes)) == 1:
        return None
    if now:
        kind = Kind.STILL_BROKEN if was else Kind.BROKEN if first else Kind.BROKEN_AND_NEW
    elif last is None:
        kind = Kind.GONE
    elif first is None:
        kind = Kind.NEW
    else:
        kind = Kind.MENDED if was else Kind.OTHER
    told = [each for some in found for each in some or () if _is_broken(each.outcome)]
    newest = next(some[0] for some in reversed(found) if some)
    return Change(
        kind=kind,
        subject=key[0],
        law=key[1],
        clauses=newest.clauses,
        badges=tuple(None if each is None else Badge(outcome=each) for each in outcomes),
        reason=told[-1].reason if told else newest.reason,
    )


def _is_broken(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome not in CONFORMING


def _accuracy(key: Key, found: Sequence[list[Record] | None]) -> Accuracy | None:
    """The fractions of the bound, where first and last are far apart; small ones are noise."""
    fractions = [
        max((each.worst for each in some or () if each.worst is not None), default=None)
        for some in found
    ]
    accuracy = Accuracy(subject=key[0], law=key[1], fractions=tuple(fractions))
    largest = max(fractions[0] or 0.0, fractions[-1] or 0.0)
    return accuracy if _ratio(accuracy) >= NOTABLE and largest >= 0.01 else None


def _ratio(accuracy: Accuracy) -> float:
    """By which factor the last fraction differs from the first, in either direction."""
    first, last = accuracy.fractions[0], accuracy.fractions[-1]
    if first is None or last is None or first == last:
        return 1.0
    small, large = sorted((first, last))
    return float("inf") if small == 0 else large / small


def _seconds(
    tables: Sequence[dict[Key, list[Record]]],
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """The time of each subject, over what all runs tried: less work is not more speed."""
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    sums: dict[str, list[float]] = {}
    for key in shared:
        row = sums.setdefault(key[0], [0.0] * len(tables))
        for number, table in enumerate(tables):
            row[number] += sum(each.seconds.get("total", 0.0) for each in table[key])
    return tuple((subject, tuple(row)) for subject, row in sums.items())


def _facts(reports: Sequence[Report]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = [dict(facts(each.run)) if each.run else {} for each in reports]
    names = dict.fromkeys(name for each in found for name in each)
    return tuple((name, tuple(each.get(name, "") for each in found)) for name in names)
