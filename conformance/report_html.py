"""HTML: a report as one page that needs nothing beside itself."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from attnspec import __version__
from attnspec.conformance import report_view as view
from attnspec.conformance.report_compare import Comparison
from attnspec.conformance.report_file import Report
from attnspec.conformance.report_text import clause_html, known_clause
from attnspec.conformance.unseen import clean
from attnspec.spec import SPEC_VERSION


def page(report: Report) -> str:
    """The page of one report."""
    failures = view.told(report.records)
    rows = view.rows(report.records, failures)
    return _render(
        "report.html.jinja",
        run=report.run,
        records=report.records,
        verdict=view.verdict(report),
        facts=[] if report.run is None else view.facts(report.run),
        outcomes=view.shown(report.records),
        totals=view.totals(report.records),
        notes=view.notes(report.records),
        families=list(dict.fromkeys(row.family for row in rows)),
        failures=failures,
        rows=rows,
        laws=[(each, view.Badge(outcome=each.outcome)) for each in report.records],
    )


def comparison_page(comparison: Comparison, names: Sequence[str]) -> str:
    """The page of several reports side by side."""
    return _render("report_compare.html.jinja", comparison=comparison, names=names)


def _read(name: str) -> str:
    return files("attnspec.conformance").joinpath(name).read_text(encoding="utf-8")


def _render(name: str, **values: Any) -> str:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_read),
        undefined=StrictUndefined,
        trim_blocks=True,
        # what is marked as HTML is ours; everything else may be a stranger's
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    script = _read("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(name).render(
        style=Markup(_read("report.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        version=__version__,
        spec_version=SPEC_VERSION,
        clause=known_clause,
        clause_html=clause_html,
        **values,
    )
