"""Markdown: a report in the dialect of GitHub, short until it is unfolded."""

import re
from collections.abc import Iterable, Sequence

from attnspec.conformance import report_view as view
from attnspec.conformance.report_compare import Comparison
from attnspec.conformance.report_file import Report
from attnspec.conformance.report_text import known_clause
from attnspec.conformance.unseen import clean

_MEANS = re.compile(
    r"[\\`*{}\[\]<>|~$@#&!]"
    r"|(?<!\w)_|_(?!\w)"  # within a word it emphasizes nothing
    r"|:(?=//|[\w+-]+:)|(?<=www)\."  # links and emoji
    r"|^[+-](?= )|(?<=^\d)[.)](?= )|(?<=^\d\d)[.)](?= )"  # items of a list
)
"""What Markdown would obey."""
_SHORT = 300
"""Letters of a reason in a table or a summary."""


def plain(text: object) -> str:
    """A string that shows as it is, in a paragraph, in a cell of a table or in HTML."""
    line = " ".join(clean(text).split())
    return _MEANS.sub(lambda found: f"&#{ord(found[0])};", line)


def fenced(text: str, language: str = "") -> str:
    """A block of code, whatever is in it."""
    text = clean(text)
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def document(report: Report, *, largest: int | None = None) -> str:
    """The report as Markdown.

    Args:
        report: of a run, ended in whatever way.
        largest: bytes that it may have; failures beyond are counted and left out.
    """
    failures = view.told(report.records)
    parts = [f"# attnspec: {plain(view.verdict(report))}"]
    run = report.run
    if run is None:
        parts.append("The file does not say how its records were made.")
    else:
        if not run.is_complete:
            parts.append(f"**This report is partial**: {plain(run.ended)}.")
        parts.append(" · ".join(f"{name} {plain(value)}" for name, value in view.facts(run)))
    notes = "\n".join(f"- {plain(each)}" for each in view.notes(report.records))
    parts += [_totals(report), notes, _matrix(report, failures)]
    size = sum(len(part.encode()) + 2 for part in parts)
    for number, each in enumerate(failures):
        part = _failure(each)
        size += len(part.encode()) + 2
        if largest is not None and size > largest:
            parts.append(f"… and {len(failures) - number} more.")
            break
        parts.append(part)
    text = "\n\n".join(part for part in parts if part) + "\n"
    if largest is not None and len(text.encode()) > largest:
        return f"{parts[0]}\n\nThe rest is too large to be shown here.\n"
    return text


def comparison_document(comparison: Comparison, names: Sequence[str]) -> str:
    """Several reports side by side as Markdown."""
    parts = [f"# attnspec: {plain(comparison.verdict)}"]
    parts += [f"**{plain(names[each])} is partial.**" for each in comparison.partial]
    made = [(name, *values) for name, values in comparison.facts]
    made += [
        (f"seconds of {subject}", *(f"{each:.1f}" for each in values))
        for subject, values in comparison.seconds
    ]
    parts.append(_table(["", *names], made))
    if comparison.changes:
        changes = [
            (
                each.kind,
                each.subject,
                each.law,
                ", ".join(each.clauses),
                *("not tried" if badge is None else badge.outcome for badge in each.badges),
                each.reason[:_SHORT],
            )
            for each in comparison.changes
        ]
        heads = ["", "implementation", "law", "clauses", *names, "why"]
        parts += ["## Outcomes", _table(heads, changes)]
    if comparison.accuracy:
        fractions = [
            (
                each.subject,
                each.law,
                *("" if value is None else f"{value:.3g}" for value in each.fractions),
            )
            for each in comparison.accuracy
        ]
        heads = ["implementation", "law", *names]
        parts += ["## Worst fraction of the bound", _table(heads, fractions)]
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    rows = [heads, *lines]
    text = ["| " + " | ".join(plain(each) for each in row) + " |" for row in rows]
    return "\n".join([text[0], "|" + " --- |" * len(heads), *text[1:]])


def _totals(report: Report) -> str:
    heads = ["implementation", *(each.outcome for each in view.shown(report.records))]
    lines = [
        (each.subject, *each.counts, each.cases, each.worst, f"{each.seconds:.1f}")
        for each in view.totals(report.records)
    ]
    return _table([*heads, "cases", "worst of bound", "seconds"], lines) if lines else ""


def _matrix(report: Report, failures: Sequence[view.Told]) -> str:
    """Clause by implementation: what is broken at once, all of it folded."""
    rows = view.rows(report.records, failures)
    if not rows:
        return ""
    heads = ["clause", "", *(cell.subject for cell in rows[0].cells)]
    bad = {each.badge.outcome for each in failures if each.is_broken}

    def line(row: view.Row) -> list[str]:
        badges = [cell.badge for cell in row.cells]
        return [
            row.clause,
            row.title,
            *("" if each is None else f"{each.glyph} {each.word}" for each in badges),
        ]

    wrong = [
        line(row)
        for row in rows
        if any(cell.badge and cell.badge.outcome in bad for cell in row.cells)
    ]
    every = _folded(f"All {len(rows)} clauses", _table(heads, map(line, rows)))
    return f"{_table(heads, wrong)}\n\n{every}" if wrong else every


def _failure(told: view.Told) -> str:
    record = told.record
    where = f"{', '.join(record.clauses)}, {record.subject}"
    summary = f"{told.badge.glyph} {told.badge.outcome}: {record.law} ({where})"
    parts = [plain(record.reason)]
    if record.stage:
        parts.append(f"First stage that diverges: **{plain(record.stage)}**")
    for identifier in record.clauses:
        known = known_clause(identifier)
        if known is not None:
            parts.append(f"> **{known.id} {plain(known.title)}.** {plain(known.sentence)}")
    if record.mismatch is not None:
        names = ("what", "where", "expected", "got", "bound", "wrong")
        parts.append(_table(names, [[record.mismatch.get(each, "?") for each in names]]))
    if record.case:
        parts.append(f"Case: {plain(record.case)}")
    if record.holds_under:
        parts.append(f"Would hold under: {plain(record.holds_under)}")
    if told.looks_like:
        bugs = (f"{plain(title or each)} ({plain(each)})" for each, title, _ in told.looks_like)
        parts.append(f"Looks like: {'; '.join(bugs)}")
    if record.snippet:
        parts.append(fenced(record.snippet, "python"))
    elif record.message and record.mismatch is None:
        parts.append(fenced(record.message))
    return _folded(summary, "\n\n".join(parts))


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{plain(summary)}</summary>\n\n{text}\n\n</details>"
