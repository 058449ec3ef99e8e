"""Views: what the pages of a report show, taken from its records and ready for templates."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from attnspec.conformance.matrix import SYMBOLS, asides, conforming, figures, worst
from attnspec.conformance.record import CONFORMING, Outcome, Record
from attnspec.conformance.report_drawing import heat_map, visibility
from attnspec.conformance.report_file import Report
from attnspec.conformance.report_run import Run
from attnspec.conformance.report_text import known_clause, order_of_clauses

GLYPHS = {
    Outcome.PASSED: "✓",
    Outcome.QUALITY_WARNING: "△",
    Outcome.FAILED: "✗",
    Outcome.ERRORED: "⨂",
    Outcome.FLAKY: "≈",
    Outcome.NOT_CLAIMED: "–",
    Outcome.NOT_AVAILABLE: "∅",
    Outcome.EXPECTED_FAILURE: "◇",
    Outcome.UNEXPECTED_PASS: "◆",
}
"""A shape for each outcome, for eyes that do not tell its colour from another."""

_TOLD = (
    Outcome.ERRORED,
    Outcome.FAILED,
    Outcome.FLAKY,
    Outcome.UNEXPECTED_PASS,
    Outcome.QUALITY_WARNING,
    Outcome.EXPECTED_FAILURE,
)
"""The outcomes of which there is more to tell than a line, in the order of telling."""


@dataclass(frozen=True, kw_only=True)
class Badge:
    """An outcome as it is shown: its name, a CSS class, a shape and a word."""

    outcome: Outcome

    @property
    def css(self) -> str:
        """Its class."""
        return str(self.outcome).replace(" ", "-")

    @property
    def glyph(self) -> str:
        """Its shape."""
        return GLYPHS[self.outcome]

    @property
    def word(self) -> str:
        """As the matrix of the terminal writes it."""
        word, _ = SYMBOLS[self.outcome]
        return word


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What became of a clause in one subject, and the first failure that says more."""

    subject: str
    badge: Badge | None = None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A clause in every subject."""

    clause: str
    family: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Told:
    """A record of which there is more to tell.

    Attributes:
        anchor: where it stands in a page.
        record: what became of the law.
        headline: why, without the numbers that are told beside it.
        sentence: what the law says, as its message quotes it.
        badge: its outcome.
        is_broken: whether it keeps the subject from conforming.
        drawings: the errors, and what may be read.
        looks_like: the planted bugs, each by its id, its title and where it was reported.
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
    """One subject in numbers."""

    subject: str
    counts: tuple[int, ...]
    cases: int
    worst: str
    seconds: float
    absent: str


def broken(records: Sequence[Record]) -> list[Record]:
    """The records that keep their subjects from conforming."""
    return [each for each in records if each.outcome not in CONFORMING]


def subjects_of(records: Sequence[Record]) -> list[str]:
    """The subjects, in the order of their first records."""
    return list(dict.fromkeys(each.subject for each in records))


def verdict(report: Report) -> str:
    """The report in a sentence."""
    wrong = broken(report.records)
    how = "" if report.run is None or report.run.is_complete else f", {report.run.ended}"
    if not report.records:
        return f"nothing was tried{how}"
    if wrong:
        laws = len({each.law for each in wrong})
        subjects = len(subjects_of(wrong))
        many = f", in {subjects} implementations" if subjects > 1 else ""
        return f"not conforming: {laws} {'law' if laws == 1 else 'laws'} broken{many}{how}"
    tried = any(each.examples for each in report.records)
    if not tried or not conforming(report.records):
        return f"nothing was tried{how}"
    return f"nothing broken so far{how}" if how else "conforming: every law that was tried holds"


def facts(run: Run) -> list[tuple[str, str]]:
    """How a run was made, as names and values."""
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
        ("took", "" if run.seconds is None else f"{run.seconds:.1f} s"),
        ("ended", run.ended),
    ]
    return [(name, value) for name, value in pairs if value]


def notes(records: Sequence[Record]) -> list[str]:
    """What was measured and not judged, and what it takes to repeat fresh cases."""
    return [*figures(records), *asides(records)]


def told(records: Sequence[Record]) -> list[Told]:
    """The records of which there is more to tell, the gravest first."""
    found = [each for each in records if each.outcome in _TOLD]
    order = order_of_clauses()

    def place(record: Record) -> tuple[int, str, int]:
        first = order.get(record.clauses[0], len(order)) if record.clauses else len(order)
        return (_TOLD.index(record.outcome), record.subject, first)

    return [
        Told(
            anchor=f"f{number}",
            record=each,
            headline=_headline(each),
            sentence=_sentence(each),
            badge=Badge(outcome=each.outcome),
            is_broken=each.outcome not in CONFORMING,
            drawings=_drawings(each),
            looks_like=_bugs(each.looks_like),
        )
        for number, each in enumerate(sorted(found, key=place), start=1)
    ]


def rows(records: Sequence[Record], failures: Sequence[Told]) -> list[Row]:
    """The matrix: every clause that was enforced, in reading order."""
    anchors: dict[tuple[str, str], str] = {}
    for each in failures:
        for identifier in each.record.clauses:
            anchors.setdefault((identifier, each.record.subject), each.anchor)
    outcomes: dict[str, dict[str, list[Outcome]]] = {}
    for record in records:
        for identifier in record.clauses:
            row = outcomes.setdefault(identifier, {})
            row.setdefault(record.subject, []).append(record.outcome)
    order = order_of_clauses()
    found = []
    for identifier in sorted(outcomes, key=lambda each: order.get(each, len(order))):
        known = known_clause(identifier)
        cells = []
        for subject in subjects_of(records):
            seen = outcomes[identifier].get(subject)
            badge = Badge(outcome=worst(seen)) if seen else None
            failure = anchors.get((identifier, subject), "")
            cells.append(Cell(subject=subject, badge=badge, failure=failure))
        found.append(
            Row(
                clause=identifier,
                family=identifier.partition("-")[0],
                title="" if known is None else known.title,
                cells=tuple(cells),
            )
        )
    return found


def shown(records: Sequence[Record]) -> list[Badge]:
    """The outcomes that occur."""
    found = {each.outcome for each in records}
    return [Badge(outcome=each) for each in Outcome if each in found]


def totals(records: Sequence[Record]) -> list[Total]:
    """Each subject in numbers, a count for each outcome that occurs."""
    found = []
    for subject in subjects_of(records):
        mine = [each for each in records if each.subject == subject]
        counts = Counter(each.outcome for each in mine)
        held = [each for each in mine if each.outcome is not Outcome.EXPECTED_FAILURE]
        fractions = [each.worst for each in held if each.worst is not None]
        ran = any(each.outcome is not Outcome.NOT_AVAILABLE for each in mine)
        found.append(
            Total(
                subject=subject,
                counts=tuple(counts[each.outcome] for each in shown(records)),
                cases=sum(each.examples for each in mine),
                worst=f"{max(fractions):.2f}".replace("inf", "∞") if fractions else "–",
                seconds=sum(each.seconds.get("total", 0.0) for each in mine),
                absent="" if ran else mine[0].reason,
            )
        )
    return found


def _headline(record: Record) -> str:
    told = record.mismatch or {}
    return record.reason.partition(f": {told.get('what')} at {told.get('where')}")[0]


def _sentence(record: Record) -> str:
    found = re.search(r"^Law +\S+: (.+)$", record.message, re.MULTILINE)
    return "" if found is None else found[1]


def _drawings(record: Record) -> tuple[Markup, ...]:
    """What can be drawn of a record; of a file that was tampered with, perhaps nothing."""
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


def _bugs(identifiers: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """What the catalogue says of planted bugs."""
    if not identifiers:
        return ()
    import attnspec.conformance.mutants  # noqa: F401  (registers them)
    from attnspec.conformance.mutants.registry import planted

    catalogue = planted()
    found = []
    for each in identifiers:
        known = catalogue.get(each)
        title = "" if known is None else known.title
        source = "" if known is None or not known.source.startswith("https://") else known.source
        found.append((each, title, source))
    return tuple(found)
