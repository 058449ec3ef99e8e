"""Progress: what a run is at, while it goes on."""

import time
from typing import TYPE_CHECKING

from attnspec.conformance.record import CONFORMING, Record
from attnspec.conformance.unseen import clean

if TYPE_CHECKING:
    from rich.console import Console

PARTS = 10
"""Plain lines that tell how far a run is, from its beginning to its end."""


class Progress:
    """On a terminal a bar with the law that runs; elsewhere plain lines; failures as they come."""

    def __init__(self, console: "Console") -> None:
        from rich import progress

        self._console = console
        self._started = time.monotonic()
        self._done = self._told = 0
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
        """Tell which law is being tried."""
        if self._console.is_terminal:
            self._bar.start()
            self._bar.update(self._task, description=clean(law), total=total)

    def add(self, record: Record, total: int) -> None:
        """Count a law, and tell it where it is broken."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, total=total)
        if record.outcome not in CONFORMING:
            clause, reason = record.clauses[0], record.reason.partition("\n")[0]
            told = f"{record.outcome}: {clause} {record.law}, {record.subject}: {reason}"
            self._say(clean(told))
        part = self._done * PARTS // max(total, 1)
        if part > self._told and not self._console.is_terminal:
            self._say(f"{self._done} of {total} laws, {time.monotonic() - self._started:.0f} s")
        self._told = max(part, self._told)

    def end(self) -> None:
        """Take the bar away."""
        self._bar.stop()

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()
