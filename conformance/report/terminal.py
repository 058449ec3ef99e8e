"""Print one report, or a comparison of several, to the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.report.comparison import Comparison, Kind
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.matrix import SYMBOLS, print_matrix
from attnspec.conformance.report.view import Badge, facts, failure_entries, verdict

ONE_SIDED = (Kind.NEW, Kind.GONE)
LONGEST = 20
"""Maximum number of changes of accuracy that are listed."""


def print_report(report: Report, console: Console) -> None:
    """Print how the run was made, the failures, and the matrix."""
    if report.run is None:
        _print(console, "The file has no header: how its records were made is unknown.")
    else:
        for name, value in facts(report.run):
            _print(console, f"{name:<14} {value}")
    for entry in failure_entries(report.records):
        if entry.is_broken:
            record = entry.record
            console.rule(Text(escape_controls(f"{record.law}, {record.subject}")), align="left")
            _print(console, f"{entry.badge.outcome}\n{record.message or record.reason}")
    print_matrix(report.records, console)
    _print(console, verdict(report))


def print_comparison(comparison: Comparison, names: Sequence[str], console: Console) -> None:
    """Print the differences between runs."""
    table = _table("Runs", "", *names)
    for name, values in comparison.facts:
        table.add_row(*(Text(escape_controls(cell)) for cell in (name, *values)))
    for subject, seconds in comparison.seconds:
        table.add_row(
            Text(escape_controls(f"seconds of {subject}")), *(f"{value:.1f}" for value in seconds)
        )
    console.print(table)
    # Laws that only one of the runs tried are counted in the verdict and not listed: two runs of
    # different laws would list nothing else.
    changes = [change for change in comparison.changes if change.kind not in ONE_SIDED]
    if changes:
        table = _table("Outcomes", "", "implementation", "law", "clauses", *names)
        for change in changes:
            cells = (change.kind, change.subject, change.law, ", ".join(change.clauses))
            badges = (_outcome(badge) for badge in change.badges)
            table.add_row(*(Text(escape_controls(cell)) for cell in cells), *badges)
        console.print(table)
    if comparison.accuracy:
        table = _table("Worst fraction of the bound", "implementation", "law", *names)
        for accuracy in comparison.accuracy[:LONGEST]:
            fractions = ("-" if value is None else f"{value:.3g}" for value in accuracy.fractions)
            table.add_row(
                Text(escape_controls(accuracy.subject)),
                Text(escape_controls(accuracy.law)),
                *fractions,
            )
        console.print(table)
        if len(comparison.accuracy) > LONGEST:
            _print(console, f"… and {len(comparison.accuracy) - LONGEST} more laws")
    for number in comparison.partial:
        _print(console, f"{names[number]} is partial: laws missing from it were not tried")
    _print(console, comparison.verdict)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for heading in headings:
        table.add_column(Text(escape_controls(heading)))
    return table


def _outcome(badge: Badge | None) -> Text:
    if badge is None:
        return Text("not tried", style="dim")
    return Text(str(badge.outcome), style=SYMBOLS[badge.outcome][1])


def _print(console: Console, text: str) -> None:
    console.print(Text(escape_controls(text)), highlight=False, soft_wrap=True)
