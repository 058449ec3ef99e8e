"""Tables as Markdown: the one that a terminal shows, for a page."""

import io

from rich import box
from rich.console import Console
from rich.table import Table

WIDEST = 240
"""Columns of the widest table."""


def markdown(table: Table) -> str:
    """Draw a table as Markdown, without its title."""
    text = io.StringIO()
    was, title = table.box, table.title
    table.box, table.title = box.MARKDOWN, None
    Console(file=text, width=WIDEST).print(table)
    table.box, table.title = was, title
    return "\n".join(line.strip() for line in text.getvalue().splitlines() if line.strip())
