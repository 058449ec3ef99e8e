"""Write the pages of a run: HTML, Markdown, and the summary of a CI step."""

from pathlib import Path

from attnspec.conformance.report.file import Report, write_atomically

LARGEST_SUMMARY = 900_000
"""Maximum bytes of a summary; GitHub Actions drops a summary of more than 1 MiB entirely."""


def write_pages(
    report: Report,
    *,
    html: str | None = None,
    markdown: str | None = None,
    summary: str | None = None,
) -> None:
    """Write the pages of a report.

    Args:
        report: of a complete or partial run.
        html: path of the HTML page, if one is requested.
        markdown: path of the Markdown page, if one is requested.
        summary: path of a file to append Markdown to, such as the step summary of GitHub Actions.

    Raises:
        OSError: if a file cannot be written.
    """
    if html:
        from attnspec.conformance.report.html import report_page

        write_atomically(Path(html), report_page(report))
    if markdown or summary:
        from attnspec.conformance.report.markdown import report_document

        if markdown:
            write_atomically(Path(markdown), report_document(report))
        if summary:
            text = report_document(report, largest=LARGEST_SUMMARY)
            with Path(summary).open("ab") as file:
                file.write(f"{text}\n".encode(errors="backslashreplace"))
