"""Markdown: a report in the dialect of GitHub, with its details collapsed."""

import re
from collections.abc import Iterable, Sequence

from attnspec.conformance.report import view
from attnspec.conformance.report.comparison import Comparison
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.text import known_clause

_SYNTAX = re.compile(
    r"[\\`*{}\[\]<>|~$@#&!]"
    r"|(?<!\w)_|_(?!\w)"  # within a word it is no emphasis
    r"|:(?=//|[\w+-]+:)|(?<=www)\."  # links and emoji
    r"|^[+-](?= )|(?<=^\d)[.)](?= )|(?<=^\d\d)[.)](?= )"  # items of a list
)
"""Characters that Markdown interprets."""
_SHORT = 300
"""Maximum length of a reason in a table, in characters."""


def plain(text: object) -> str:
    """Escape a string so that paragraphs, cells of tables and HTML show it unchanged."""
    line = " ".join(escape_controls(text).split())
    return _SYNTAX.sub(lambda match: f"&#{ord(match[0])};", line)


def fenced(text: str, language: str = "") -> str:
    """Return a fenced block of code; its fence is longer than any in the code."""
    text = escape_controls(text)
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def report_document(report: Report, *, largest: int | None = None) -> str:
    """Return a report as Markdown.

    Args:
        report: of a complete or partial run.
        largest: maximum size in bytes; failures that exceed it are counted and left out.
    """
    failures = view.failure_entries(report.records)
    parts = [f"# attnspec: {plain(view.verdict(report))}"]
    run = report.run
    if run is None:
        parts.append("The file has no header: how its records were made is unknown.")
    else:
        if not run.is_complete:
            parts.append(f"**This report is partial**: {plain(run.ended)}.")
        parts.append(" · ".join(f"{name} {plain(value)}" for name, value in view.facts(run)))
    notes = "\n".join(f"- {plain(note)}" for note in view.notes(report.records))
    parts += [_totals(report), notes, _matrix(report, failures)]
    size = sum(len(part.encode()) + 2 for part in parts)
    for number, entry in enumerate(failures):
        part = _failure(entry)
        size += len(part.encode()) + 2
        if largest is not None and size > largest:
            parts.append(f"… and {len(failures) - number} more.")
            break
        parts.append(part)
    text = "\n\n".join(part for part in parts if part) + "\n"
    if largest is not None and len(text.encode()) > largest:
        return f"{parts[0]}\n\nThe rest exceeds the maximum size of this page.\n"
    return text


def comparison_document(comparison: Comparison, names: Sequence[str]) -> str:
    """Return a comparison of several reports as Markdown."""
    parts = [f"# attnspec: {plain(comparison.verdict)}"]
    parts += [f"**{plain(names[number])} is partial.**" for number in comparison.partial]
    facts = [(name, *values) for name, values in comparison.facts]
    facts += [
        (f"seconds of {subject}", *(f"{value:.1f}" for value in values))
        for subject, values in comparison.seconds
    ]
    parts.append(_table(["", *names], facts))
    if comparison.changes:
        changes = [
            (
                change.kind,
                change.subject,
                change.law,
                ", ".join(change.clauses),
                *("not tried" if badge is None else badge.outcome for badge in change.badges),
                change.reason[:_SHORT],
            )
            for change in comparison.changes
        ]
        headings = ["", "implementation", "law", "clauses", *names, "why"]
        parts += ["## Outcomes", _table(headings, changes)]
    if comparison.accuracy:
        fractions = [
            (
                change.subject,
                change.law,
                *("" if value is None else f"{value:.3g}" for value in change.fractions),
            )
            for change in comparison.accuracy
        ]
        headings = ["implementation", "law", *names]
        parts += ["## Worst fraction of the bound", _table(headings, fractions)]
    return "\n\n".join(parts) + "\n"


def _table(headings: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in (headings, *rows)]
    return "\n".join([lines[0], "|" + " --- |" * len(headings), *lines[1:]])


def _totals(report: Report) -> str:
    headings = ["implementation", *(badge.outcome for badge in view.badges_in(report.records))]
    rows = [
        (total.subject, *total.counts, total.cases, total.worst, f"{total.seconds:.1f}")
        for total in view.totals(report.records)
    ]
    return _table([*headings, "cases", "worst of bound", "seconds"], rows) if rows else ""


def _matrix(report: Report, failures: Sequence[view.FailureEntry]) -> str:
    """Return the matrix of clauses: broken ones in full, then all of them collapsed."""
    rows = view.rows(report.records, failures)
    if not rows:
        return ""
    headings = ["clause", "", *(cell.subject for cell in rows[0].cells)]
    bad = {entry.badge.outcome for entry in failures if entry.is_broken}

    def line(row: view.Row) -> list[str]:
        badges = [cell.badge for cell in row.cells]
        return [
            row.clause,
            row.title,
            *("" if badge is None else f"{badge.glyph} {badge.word}" for badge in badges),
        ]

    broken = [
        line(row)
        for row in rows
        if any(cell.badge and cell.badge.outcome in bad for cell in row.cells)
    ]
    whole = _collapsed(f"All {len(rows)} clauses", _table(headings, map(line, rows)))
    return f"{_table(headings, broken)}\n\n{whole}" if broken else whole


def _failure(entry: view.FailureEntry) -> str:
    record = entry.record
    where = f"{', '.join(record.clauses)}, {record.subject}"
    summary = f"{entry.badge.glyph} {entry.badge.outcome}: {record.law} ({where})"
    parts = [plain(record.reason)]
    if record.stage:
        parts.append(f"First stage that diverges: **{plain(record.stage)}**")
    for identifier in record.clauses:
        known = known_clause(identifier)
        if known is not None:
            parts.append(f"> **{known.id} {plain(known.title)}.** {plain(known.sentence)}")
    if record.mismatch is not None:
        names = ("what", "where", "expected", "got", "difference", "bound", "wrong")
        parts.append(_table(names, [[record.mismatch.get(name, "?") for name in names]]))
    if record.case:
        parts.append(f"Case: {plain(record.case)}")
    if record.sizes:
        parts.append("\n".join(f"- {plain(each)}" for each in record.sizes))
    if record.passes_in:
        parts.append(f"The same case passes in {' and '.join(map(plain, record.passes_in))}")
    if record.holds_under:
        parts.append(f"Would hold under: {plain(record.holds_under)}")
    if entry.looks_like:
        mutants = (
            f"{plain(title or identifier)} ({plain(identifier)})"
            for identifier, title, _ in entry.looks_like
        )
        parts.append(f"Looks like: {'; '.join(mutants)}")
    if record.snippet:
        parts.append(fenced(record.snippet, "python"))
    elif record.message and record.mismatch is None:
        parts.append(fenced(record.message))
    return _collapsed(summary, "\n\n".join(parts))


def _collapsed(summary: str, text: str) -> str:
    return f"<details><summary>{plain(summary)}</summary>\n\n{text}\n\n</details>"
