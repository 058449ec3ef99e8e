"""Views: the data of the pages of a report, computed from its records for the templates."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from attnspec.conformance.report.drawing import heat_map, visibility
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.matrix import (
    SYMBOLS,
    conforming,
    figures,
    missing,
    run_notes,
    worst,
)
from attnspec.conformance.report.record import BROKEN, Outcome, Record
from attnspec.conformance.report.run import Run
from attnspec.conformance.report.text import known_clause, order_of_clauses

GLYPHS = {
    Outcome.PASSED: "✓",
    Outcome.QUALITY_WARNING: "△",
    Outcome.FAILED: "✗",
    Outcome.ERRORED: "⨂",
    Outcome.FLAKY: "≈",
    Outcome.INTERNAL_ERROR: "⚠",
    Outcome.NOT_DECIDED: "?",
    Outcome.NOT_CLAIMED: "–",
    Outcome.NOT_AVAILABLE: "∅",
    Outcome.EXPECTED_FAILURE: "◇",
    Outcome.UNEXPECTED_PASS: "◆",
}
"""A shape for each outcome, for readers who cannot tell the colours apart."""

_WITH_ENTRY = (
    Outcome.FAILED,
    Outcome.ERRORED,
    Outcome.FLAKY,
    Outcome.UNEXPECTED_PASS,
    Outcome.INTERNAL_ERROR,
    Outcome.QUALITY_WARNING,
    Outcome.EXPECTED_FAILURE,
)
"""The outcomes that get an entry of their own on a page, in their order."""


@dataclass(frozen=True, kw_only=True)
class Badge:
    """An outcome as pages show it: its name, a CSS class, a shape and a word."""

    outcome: Outcome

    @property
    def css(self) -> str:
        """Its CSS class."""
        return str(self.outcome).replace(" ", "-")

    @property
    def glyph(self) -> str:
        """Its shape."""
        return GLYPHS[self.outcome]

    @property
    def word(self) -> str:
        """Its word in the matrix of the terminal."""
        word, _ = SYMBOLS[self.outcome]
        return word


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The outcome of a clause on one subject, and the anchor of its first entry."""

    subject: str
    badge: Badge | None = None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcomes of a clause on every subject."""

    clause: str
    family: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class FailureEntry:
    """A failure, a warning or a known deviation, as a page shows it.

    Attributes:
        anchor: its anchor on the page.
        record: the record of the law.
        headline: the reason, without the numbers, which are shown beside it.
        sentence: the sentence of the law, as the message quotes it.
        badge: its outcome.
        is_broken: whether it keeps the subject from conforming.
        drawings: drawings of the errors and of the visible keys.
        looks_like: the mutants, each by its id, its title and the address of its bug report.
    """

    anchor: str
    record: Record
    headline: str
    sentence: str
    badge: Badge
    is_broken: bool
    drawings: tuple[Markup, ...]
    looks_like: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Total:
    """The totals of one subject."""

    subject: str
    counts: tuple[int, ...]
    cases: int
    worst: str
    seconds: float
    absent: str


def broken(records: Sequence[Record]) -> list[Record]:
    """Return the records of broken laws."""
    return [record for record in records if record.outcome in BROKEN]


def subjects_of(records: Sequence[Record]) -> list[str]:
    """Return the subjects in the order of their first records."""
    return list(dict.fromkeys(record.subject for record in records))


def verdict(report: Report) -> str:
    """Return the verdict of a report in one sentence."""
    failures = broken(report.records)
    ending = "" if report.run is None or report.run.is_complete else f", {report.run.ended}"
    if not report.records:
        return f"nothing was tried{ending}"
    if failures:
        laws = len({record.law for record in failures})
        subjects = len(subjects_of(failures))
        where = f", in {subjects} implementations" if subjects > 1 else ""
        return f"not conforming: {laws} {'law' if laws == 1 else 'laws'} broken{where}{ending}"
    internal = [each for each in report.records if each.outcome is Outcome.INTERNAL_ERROR]
    if internal:
        return f"not decided: attnspec itself failed in {internal[0].law}{ending}"
    undecided = [each for each in report.records if each.outcome is Outcome.NOT_DECIDED]
    if undecided:
        return f"not conforming: {undecided[0].reason}{ending}"
    is_tried = any(record.examples for record in report.records)
    if not is_tried or not conforming(report.records):
        return f"nothing was tried{ending}"
    if ending:
        return f"no law broken so far{ending}"
    return "conforming: every law that was tried holds"


def facts(run: Run) -> list[tuple[str, str]]:
    """Return the header of a run as pairs of name and value."""
    date = run.date.replace("T", " ").replace("+00:00", " UTC")
    device = f"{run.device} ({run.device_name})" if run.device_name else run.device
    pairs = [
        ("attnspec", run.attnspec),
        ("specification", run.spec),
        ("torch", run.torch),
        ("python", run.python),
        *run.packages.items(),
        ("machine", run.machine),
        ("device", device),
        ("date", date),
        ("effort", run.effort),
        ("seed", "" if run.seed is None else str(run.seed)),
        ("targets", ", ".join(run.targets) or "everything registered"),
        ("laws", ", ".join(run.laws)),
        ("remarks", "; ".join(run.remarks)),
        ("took", "" if run.seconds is None else f"{run.seconds:.1f} s"),
        ("ended", run.ended),
    ]
    return [(name, value) for name, value in pairs if value]


def notes(records: Sequence[Record]) -> list[str]:
    """Return the lines below the totals: figures, remarks, and missing dependencies."""
    return [*figures(records), *run_notes(records), *missing(records)]


def failure_entries(records: Sequence[Record]) -> list[FailureEntry]:
    """Return an entry for each failure, then each error, warning and known deviation."""
    listed = [record for record in records if record.outcome in _WITH_ENTRY]
    order = order_of_clauses()

    def place(record: Record) -> tuple[int, str, int]:
        first = order.get(record.clauses[0], len(order)) if record.clauses else len(order)
        return (_WITH_ENTRY.index(record.outcome), record.subject, first)

    return [
        FailureEntry(
            anchor=f"f{number}",
            record=record,
            headline=headline(record),
            sentence=_law_sentence(record),
            badge=Badge(outcome=record.outcome),
            is_broken=record.outcome in BROKEN,
            drawings=_drawings(record),
            looks_like=_mutant_references(record.looks_like),
        )
        for number, record in enumerate(sorted(listed, key=place), start=1)
    ]


def rows(records: Sequence[Record], failures: Sequence[FailureEntry]) -> list[Row]:
    """Return the rows of the matrix: every enforced clause, in reading order."""
    anchors: dict[tuple[str, str], str] = {}
    for entry in failures:
        for identifier in entry.record.clauses:
            anchors.setdefault((identifier, entry.record.subject), entry.anchor)
    outcomes: dict[str, dict[str, list[Outcome]]] = {}
    for record in records:
        for identifier in record.clauses:
            row = outcomes.setdefault(identifier, {})
            row.setdefault(record.subject, []).append(record.outcome)
    order = order_of_clauses()
    matrix = []
    for identifier in sorted(outcomes, key=lambda clause: order.get(clause, len(order))):
        known = known_clause(identifier)
        cells = []
        for subject in subjects_of(records):
            reached = outcomes[identifier].get(subject)
            badge = Badge(outcome=worst(reached)) if reached else None
            failure = anchors.get((identifier, subject), "")
            cells.append(Cell(subject=subject, badge=badge, failure=failure))
        matrix.append(
            Row(
                clause=identifier,
                family=identifier.partition("-")[0],
                title="" if known is None else known.title,
                cells=tuple(cells),
            )
        )
    return matrix


def badges_in(records: Sequence[Record]) -> list[Badge]:
    """Return the badges of the outcomes that occur."""
    occurring = {record.outcome for record in records}
    return [Badge(outcome=outcome) for outcome in Outcome if outcome in occurring]


def totals(records: Sequence[Record]) -> list[Total]:
    """Return the totals of each subject, with a count for each outcome that occurs."""
    table = []
    for subject in subjects_of(records):
        own = [record for record in records if record.subject == subject]
        counts = Counter(record.outcome for record in own)
        judged = [record for record in own if record.outcome is not Outcome.EXPECTED_FAILURE]
        fractions = [record.worst for record in judged if record.worst is not None]
        ran = any(record.outcome is not Outcome.NOT_AVAILABLE for record in own)
        table.append(
            Total(
                subject=subject,
                counts=tuple(counts[badge.outcome] for badge in badges_in(records)),
                cases=sum(record.examples for record in own),
                worst=f"{max(fractions):.2f}".replace("inf", "∞") if fractions else "–",
                seconds=sum(record.seconds.get("total", 0.0) for record in own),
                absent="" if ran else own[0].reason,
            )
        )
    return table


def headline(record: Record) -> str:
    """Return the reason of a record without the numbers of its worst element."""
    mismatch = record.mismatch or {}
    return record.reason.partition(f": {mismatch.get('what')} at {mismatch.get('where')}")[0]


def _law_sentence(record: Record) -> str:
    match = re.search(r"^Law +\S+: (.+)$", record.message, re.MULTILINE)
    return "" if match is None else match[1]


def _drawings(record: Record) -> tuple[Markup, ...]:
    """Return the drawings of a record, without malformed ones, as of a manipulated file."""
    drawn = []
    pictures: tuple[tuple[str, Any], ...] = (("errors", heat_map), ("visible", visibility))
    for name, draw in pictures:
        try:
            grid = (record.picture or {}).get(name)
            if grid is not None:
                drawn.append(draw(grid))
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError):
            continue
    return tuple(drawn)


def _mutant_references(identifiers: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """Return id, title and source of mutants; title and source are empty if unknown."""
    if not identifiers:
        return ()
    from attnspec.conformance import mutants

    catalogue = mutants.load()
    references = []
    for identifier in identifiers:
        known = catalogue.get(identifier)
        title = "" if known is None else known.title
        source = "" if known is None or not known.source.startswith("https://") else known.source
        references.append((identifier, title, source))
    return tuple(references)
