"""Convert tables of `rich`, as a terminal shows them, to Markdown."""

import io

from rich import box
from rich.table import Table

from attnspec.conformance.report.console import plain_console

WIDEST = 240
"""Maximum width of a table in characters."""


def markdown(table: Table) -> str:
    """Return a table as Markdown, without its title."""
    text = io.StringIO()
    table_box, title = table.box, table.title
    table.box, table.title = box.MARKDOWN, None
    plain_console(file=text, width=WIDEST).print(table)
    table.box, table.title = table_box, title
    return "\n".join(line.strip() for line in text.getvalue().splitlines() if line.strip())
