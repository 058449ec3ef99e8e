"""HTML: a report as one self-contained page, which needs no network and no other file."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from attnspec import __version__
from attnspec.conformance.report import view
from attnspec.conformance.report.causes import causes_of
from attnspec.conformance.report.comparison import Comparison
from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.file import Report
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.report.text import clause_html, known_clause
from attnspec.spec import SPEC_VERSION


def report_page(report: Report) -> str:
    """Return the page of one report."""
    failures = view.failure_entries(report.records)
    rows = view.rows(report.records, failures)
    return _render(
        "report.html.jinja",
        run=report.run,
        records=report.records,
        verdict=view.verdict(report),
        facts=[] if report.run is None else view.facts(report.run),
        outcomes=view.badges_in(report.records),
        totals=view.totals(report.records),
        notes=view.notes(report.records),
        families=list(dict.fromkeys(row.family for row in rows)),
        failures=failures,
        groups=_groups(report, failures),
        rows=rows,
        laws=[(record, view.Badge(outcome=record.outcome)) for record in report.records],
    )


@dataclass(frozen=True, kw_only=True)
class Group:
    """Entries of a page with a common explanation, or without one.

    Attributes:
        title: the explanation, and the implementation.
        entries: the entries; the first has the smallest call.
    """

    title: str
    entries: tuple[view.FailureEntry, ...]


def _groups(report: Report, entries: Sequence[view.FailureEntry]) -> list[Group]:
    """Group entries by cause: failures first, then errors, then what breaks no law."""
    by_record = {id(entry.record): entry for entry in entries}
    causes = causes_of(report.records)
    causes.sort(key=lambda cause: cause.records[0].outcome is Outcome.ERRORED)
    groups = [
        Group(
            title=f"{cause.subject}: {cause.explanation or 'no explanation was found'}",
            entries=tuple(by_record.pop(id(record)) for record in cause.records),
        )
        for cause in causes
    ]
    rest = tuple(entry for entry in entries if id(entry.record) in by_record)
    return [*groups, Group(title="Warnings and known deviations", entries=rest)] if rest else groups


def comparison_page(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the page that compares several reports."""
    return _render("report_compare.html.jinja", comparison=comparison, names=names)


def _template(name: str) -> str:
    return (
        files("attnspec.conformance.report").joinpath("templates", name).read_text(encoding="utf-8")
    )


def _render(name: str, **values: Any) -> str:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_template),
        undefined=StrictUndefined,
        trim_blocks=True,
        # only our own HTML is marked as such; any other value may be untrusted text
        finalize=lambda value: value if isinstance(value, Markup) else escape_controls(value),
    )
    script = _template("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(name).render(
        style=Markup(_template("report.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        version=__version__,
        spec_version=SPEC_VERSION,
        clause=known_clause,
        clause_html=clause_html,
        **values,
    )
