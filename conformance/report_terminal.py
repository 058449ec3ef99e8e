"""The terminal: a report as the run printed it, and several side by side."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnspec.conformance.matrix import SYMBOLS, print_matrix
from attnspec.conformance.report_compare import Comparison, Kind
from attnspec.conformance.report_file import Report
from attnspec.conformance.report_view import Badge, facts, told, verdict
from attnspec.conformance.unseen import clean

ONE_SIDED = (Kind.NEW, Kind.GONE)
FEW = 20
"""Changes of accuracy that are listed at most."""


def print_report(report: Report, console: Console) -> None:
    """Print how the run was made, what failed, and the matrix."""
    if report.run is None:
        _say(console, "The file does not say how its records were made.")
    else:
        for name, value in facts(report.run):
            _say(console, f"{name:<14} {value}")
    for each in told(report.records):
        if each.is_broken:
            console.rule(Text(clean(f"{each.record.law}, {each.record.subject}")), align="left")
            _say(console, f"{each.badge.outcome}\n{each.record.message or each.record.reason}")
    print_matrix(report.records, console)
    _say(console, verdict(report))


def print_comparison(comparison: Comparison, names: Sequence[str], console: Console) -> None:
    """Print what differs between runs."""
    table = _table("Runs", "", *names)
    for name, values in comparison.facts:
        table.add_row(*(Text(clean(each)) for each in (name, *values)))
    for subject, seconds in comparison.seconds:
        table.add_row(Text(clean(f"seconds of {subject}")), *(f"{each:.1f}" for each in seconds))
    console.print(table)
    if any(each.kind not in ONE_SIDED for each in comparison.changes):
        table = _table("Outcomes", "", "implementation", "law", "clauses", *names)
        # what only one of them tried is a count: runs of other laws are nothing but that
        for change in (each for each in comparison.changes if each.kind not in ONE_SIDED):
            words = (change.kind, change.subject, change.law, ", ".join(change.clauses))
            badges = (_outcome(each) for each in change.badges)
            table.add_row(*(Text(clean(each)) for each in words), *badges)
        console.print(table)
    if comparison.accuracy:
        table = _table("Worst fraction of the bound", "implementation", "law", *names)
        for each in comparison.accuracy[:FEW]:
            fractions = ("-" if value is None else f"{value:.3g}" for value in each.fractions)
            table.add_row(Text(clean(each.subject)), Text(clean(each.law)), *fractions)
        console.print(table)
        if len(comparison.accuracy) > FEW:
            _say(console, f"… and {len(comparison.accuracy) - FEW} more laws")
    for number in comparison.partial:
        _say(console, f"{names[number]} is partial: what is missing in it was not tried")
    _say(console, comparison.verdict)


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for head in heads:
        table.add_column(Text(clean(head)))
    return table


def _outcome(badge: Badge | None) -> Text:
    if badge is None:
        return Text("not tried", style="dim")
    return Text(str(badge.outcome), style=SYMBOLS[badge.outcome][1])


def _say(console: Console, text: str) -> None:
    console.print(Text(clean(text)), highlight=False, soft_wrap=True)
