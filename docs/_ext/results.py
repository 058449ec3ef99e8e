"""What the last whole conformance runs have found, as the pages show it.

The files are written by `nox -s evidence`, one for each kind of device.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnspec.conformance.matrix import worst
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.report_file import Report, read_report

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
    Outcome.NOT_CLAIMED: "– not claimed",
    Outcome.NOT_AVAILABLE: "∅ not available",
}
"""How a page says what became of a clause, in the order in which it is said."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What some implementations have in common at one clause.

    Attributes:
        outcome: the gravest of the laws that enforce it.
        subjects: who behaves so.
        reason: why; nothing where the laws hold.
        links: where a known deviation is described.
    """

    outcome: Outcome
    subjects: tuple[str, ...]
    reason: str = ""
    links: tuple[str, ...] = ()


def paths() -> list[Path]:
    """The files, that of the CPU first."""
    return sorted(FOLDER.glob(PATTERN))


@functools.cache
def reports() -> tuple[Report, ...]:
    """What they hold."""
    return tuple(map(read_report, paths()))


@functools.cache
def records() -> tuple[Record, ...]:
    """All records; where one machine could not run an implementation, another's may take over."""
    return tuple(together(each.records for each in reports()))


def together(several: Iterable[Sequence[Record]]) -> Iterator[Record]:
    """The records of several runs, each subject from the first run that had it available."""
    runs = list(several)
    chosen: dict[str, int] = {}
    for number, found in enumerate(runs):
        for each in found:
            if each.outcome is not Outcome.NOT_AVAILABLE:
                chosen.setdefault(each.subject, number)
    for number, found in enumerate(runs):
        for each in found:
            if chosen.setdefault(each.subject, number) == number:
                yield each


def subjects(found: Sequence[Record]) -> list[str]:
    """Who was judged, in the order of their first records."""
    return list(dict.fromkeys(each.subject for each in found))


def behaviours(clause: str, found: Sequence[Record]) -> list[Behaviour]:
    """How everyone behaves who was held to a clause, those together who behave alike."""
    told: dict[tuple[Outcome, str, tuple[str, ...]], list[str]] = {}
    mine = [each for each in found if clause in each.clauses]
    for subject in subjects(mine):
        some = [each for each in mine if each.subject == subject]
        outcome = worst(each.outcome for each in some)
        why = [each for each in some if each.outcome is outcome]
        reason = "; ".join(dict.fromkeys(each.reason for each in why if each.reason))
        links = tuple(dict.fromkeys(each.link for each in why if each.link))
        told.setdefault((outcome, reason, links), []).append(subject)
    order = list(WORDS)
    return [
        Behaviour(outcome=outcome, subjects=tuple(names), reason=reason, links=links)
        for (outcome, reason, links), names in sorted(
            told.items(), key=lambda each: order.index(each[0][0])
        )
    ]
