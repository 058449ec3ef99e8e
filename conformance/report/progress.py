"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from typing import TYPE_CHECKING

from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.record import BROKEN, Record

if TYPE_CHECKING:
    from rich.console import Console

PARTS = 10
"""Number of plain progress lines of a whole run."""


class Progress:
    """A progress display, which may also print failures as they occur."""

    def __init__(self, console: "Console", *, shows_failures: bool = True) -> None:
        from rich import progress

        self._shows_failures = shows_failures

        self._console = console
        self._started = time.monotonic()
        self._done = self._parts_shown = 0
        columns = (
            progress.TextColumn("laws"),
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}", markup=False),
        )
        self._bar = progress.Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)

    def begin(self, law: str, total: int) -> None:
        """Show the law that is being tried."""
        if self._console.is_terminal:
            self._bar.start()
            self._bar.update(self._task, description=escape_controls(law), total=total)

    def add(self, record: Record, total: int) -> None:
        """Count a law, and print it if it is broken."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, total=total)
        if record.outcome in BROKEN and self._shows_failures:
            clause, reason = record.clauses[0], record.reason.partition("\n")[0]
            line = f"{record.outcome}: {clause} {record.law}, {record.subject}: {reason}"
            self._print(escape_controls(line))
        part = self._done * PARTS // max(total, 1)
        if part > self._parts_shown and not self._console.is_terminal:
            self._print(f"{self._done} of {total} laws, {time.monotonic() - self._started:.0f} s")
        self._parts_shown = max(part, self._parts_shown)

    def end(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()
