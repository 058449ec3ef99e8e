"""`attnspec report`: what a run found, read again; and several runs side by side."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from attnspec.conformance.report_file import Report

USAGE = 2
PIPED = 220
"""Columns where no terminal says how many it has: room for every implementation."""


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
    from attnspec.conformance.report_file import read_report

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
    """End with one clear error."""
    from attnspec.conformance.unseen import clean

    print(f"attnspec: {clean(message)}", file=sys.stderr)
    raise typer.Exit(USAGE)


def check_paths(*paths: Path | None) -> None:
    """Refuse files that could not be written, before any work is done for them."""
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            refuse(f"{path}: there is no folder {folder}")
        if path.is_dir():
            refuse(f"{path}: it is a folder")


def summary_of_actions() -> str | None:
    """The file to which a step of GitHub Actions may append Markdown."""
    return os.environ.get("GITHUB_STEP_SUMMARY") or None


def _console() -> "Console":
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED)


def _one(found: "Report", html: Path | None, markdown: Path | None) -> None:
    """Draw the pages that are asked for; without any, print what the run printed."""
    from attnspec.conformance.report import write_pages

    check_paths(html, markdown)
    write_pages(found, html=str(html or ""), markdown=str(markdown or ""))
    if html is None and markdown is None:
        from attnspec.conformance.report_terminal import print_report

        print_report(found, _console())


def _several(
    reports: "Sequence[Report]", names: list[str], html: Path | None, markdown: Path | None
) -> None:
    from attnspec.conformance.report_compare import compare
    from attnspec.conformance.report_file import write_whole

    check_paths(html, markdown)
    comparison = compare(reports)
    if html is not None:
        from attnspec.conformance.report_html import comparison_page

        write_whole(html, comparison_page(comparison, names))
    if markdown is not None:
        from attnspec.conformance.report_markdown import comparison_document

        write_whole(markdown, comparison_document(comparison, names))
    if html is None and markdown is None:
        from attnspec.conformance.report_terminal import print_comparison

        print_comparison(comparison, names, _console())
