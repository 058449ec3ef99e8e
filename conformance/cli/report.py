"""`attnspec report`: show the report of a run again, or compare several."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from attnspec.conformance.report.file import Report

USAGE = 2
PIPED = 220
"""Columns if the output is no terminal: enough for every implementation."""


def report(
    files: Annotated[
        list[Path], typer.Argument(help="What --report wrote; of several, the oldest first.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Write one page that needs nothing beside itself.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write Markdown.")] = None,
) -> None:
    """Show a report again, draw its pages, or tell what changed between several.

    Exit status 0: everything was read and written, whatever it says; 2: usage.

    For example, attnspec report run.jsonl --html run.html, or

        attnspec report before.jsonl after.jsonl
    """
    from attnspec.conformance.report.file import read_report

    try:
        reports = [read_report(each) for each in files]
        if len(reports) == 1:
            _one(reports[0], html, markdown)
        else:
            _several(reports, [str(each) for each in files], html, markdown)
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")


def refuse(message: str) -> NoReturn:
    """Print one error, and end the command with the status for usage errors."""
    from attnspec.conformance.report.escape import escape_controls

    print(f"attnspec: {escape_controls(message)}", file=sys.stderr)
    raise typer.Exit(USAGE)


def check_paths(*paths: Path | None) -> None:
    """Refuse files that cannot be written, before any work is done for them."""
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            refuse(f"{path}: there is no folder {folder}")
        if path.is_dir():
            refuse(f"{path}: it is a folder")


def summary_of_actions() -> str | None:
    """Return the path to which a step of GitHub Actions may append Markdown, or `None`."""
    return os.environ.get("GITHUB_STEP_SUMMARY") or None


def _console() -> "Console":
    from attnspec.conformance.report.console import plain_console

    return plain_console(width=None if sys.stdout.isatty() else PIPED)


def _one(report: "Report", html: Path | None, markdown: Path | None) -> None:
    """Write the pages that are named; if none is, print the report as the run did."""
    from attnspec.conformance.report.pages import write_pages

    check_paths(html, markdown)
    write_pages(report, html=str(html or ""), markdown=str(markdown or ""))
    if html is None and markdown is None:
        from attnspec.conformance.report.terminal import print_report

        print_report(report, _console())


def _several(
    reports: "Sequence[Report]", names: list[str], html: Path | None, markdown: Path | None
) -> None:
    from attnspec.conformance.report.comparison import compare_reports
    from attnspec.conformance.report.file import write_atomically

    check_paths(html, markdown)
    comparison = compare_reports(reports)
    if html is not None:
        from attnspec.conformance.report.html import comparison_page

        write_atomically(html, comparison_page(comparison, names))
    if markdown is not None:
        from attnspec.conformance.report.markdown import comparison_document

        write_atomically(markdown, comparison_document(comparison, names))
    if html is None and markdown is None:
        from attnspec.conformance.report.terminal import print_comparison

        print_comparison(comparison, names, _console())
