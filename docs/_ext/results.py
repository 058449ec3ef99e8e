"""The results of the last complete conformance runs, for the pages.

`nox -s evidence` writes the files, one for each kind of device.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnspec.conformance.report.file import Report, read_report
from attnspec.conformance.report.matrix import worst
from attnspec.conformance.report.record import Outcome, Record

FOLDER = Path(__file__).parents[1] / "results"
PATTERN = "conformance*.jsonl"

WORDS = {
    Outcome.PASSED: "✓ pass",
    Outcome.QUALITY_WARNING: "△ warning",
    Outcome.EXPECTED_FAILURE: "◇ known deviation",
    Outcome.FAILED: "✗ fail",
    Outcome.ERRORED: "⨂ error",
    Outcome.FLAKY: "≈ flaky",
    Outcome.UNEXPECTED_PASS: "◆ no longer deviates",
    Outcome.INTERNAL_ERROR: "⚠ internal error",
    Outcome.NOT_DECIDED: "? not decided",
    Outcome.NOT_CLAIMED: "– not claimed",
    Outcome.NOT_AVAILABLE: "∅ not available",
}
"""The sign and word of each outcome, in the order of the pages."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The common behaviour of a group of subjects under one clause.

    Attributes:
        outcome: the gravest outcome of the laws that enforce the clause.
        subjects: the subjects of the group.
        reason: of the outcome; empty if the laws hold.
        links: addresses that describe a known deviation.
    """

    outcome: Outcome
    subjects: tuple[str, ...]
    reason: str = ""
    links: tuple[str, ...] = ()


def paths() -> list[Path]:
    """Return the files, the CPU's first."""
    return sorted(FOLDER.glob(PATTERN))


@functools.cache
def reports() -> tuple[Report, ...]:
    """Return the reports in the files."""
    return tuple(map(read_report, paths()))


@functools.cache
def records() -> tuple[Record, ...]:
    """Return all records, each subject's from the first machine that could run it."""
    return tuple(together(report.records for report in reports()))


def together(several: Iterable[Sequence[Record]]) -> Iterator[Record]:
    """Yield the records of several runs, each subject from the first run that had it available."""
    runs = list(several)
    chosen: dict[str, int] = {}
    for number, run in enumerate(runs):
        for record in run:
            if record.outcome is not Outcome.NOT_AVAILABLE:
                chosen.setdefault(record.subject, number)
    for number, run in enumerate(runs):
        for record in run:
            if chosen.setdefault(record.subject, number) == number:
                yield record


def subjects(several: Sequence[Record]) -> list[str]:
    """Return the subjects in the order of their first records."""
    return list(dict.fromkeys(record.subject for record in several))


def behaviours(clause: str, several: Sequence[Record]) -> list[Behaviour]:
    """Return the behaviour of all subjects under a clause, grouped by equal behaviour."""
    groups: dict[tuple[Outcome, str, tuple[str, ...]], list[str]] = {}
    relevant = [record for record in several if clause in record.clauses]
    for subject in subjects(relevant):
        own = [record for record in relevant if record.subject == subject]
        outcome = worst(record.outcome for record in own)
        gravest = [record for record in own if record.outcome is outcome]
        reason = "; ".join(dict.fromkeys(record.reason for record in gravest if record.reason))
        links = tuple(dict.fromkeys(record.link for record in gravest if record.link))
        groups.setdefault((outcome, reason, links), []).append(subject)
    order = list(WORDS)
    return [
        Behaviour(outcome=outcome, subjects=tuple(names), reason=reason, links=links)
        for (outcome, reason, links), names in sorted(
            groups.items(), key=lambda item: order.index(item[0][0])
        )
    ]
