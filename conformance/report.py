"""Reports: where the pages of a run are written to."""

from pathlib import Path

from attnspec.conformance.report_file import Report, write_whole

LARGEST_SUMMARY = 900_000
"""Bytes of Markdown; a summary of GitHub Actions that has more than 1 MiB is refused whole."""


def write_pages(
    report: Report,
    *,
    html: str | None = None,
    markdown: str | None = None,
    summary: str | None = None,
) -> None:
    """Draw a report.

    Args:
        report: of a run, ended in whatever way.
        html: where a page goes, if one is wanted.
        markdown: likewise in Markdown.
        summary: a file to which Markdown is appended, as GitHub Actions gives one.

    Raises:
        OSError: where a file cannot be written.
    """
    if html:
        from attnspec.conformance.report_html import page

        write_whole(Path(html), page(report))
    if markdown or summary:
        from attnspec.conformance.report_markdown import document

        if markdown:
            write_whole(Path(markdown), document(report))
        if summary:
            text = document(report, largest=LARGEST_SUMMARY)
            with Path(summary).open("ab") as file:
                file.write(f"{text}\n".encode(errors="backslashreplace"))
