"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from attnspec.conformance.report.escape import escape_controls
from attnspec.conformance.report.record import BROKEN, Record

if TYPE_CHECKING:
    from rich.console import Console

PARTS = 10
"""Number of plain progress lines of a whole run."""

LOOKING = 1.0
"""Seconds between two looks at what the processes of the run wait for."""

STALE = 6.0
"""Seconds after which a note that is not renewed is about a wait that has ended."""

FIRST_WAIT, GROWTH = 4.0, 3.0
"""Seconds after which a wait is printed, and the factor by which each next line comes later."""

WIDTH = 300
"""Characters of the longest description of a wait."""


class Progress:
    """A progress display, which may also print failures as they occur."""

    def __init__(
        self, console: "Console", *, shows_failures: bool = True, folder: Path | None = None
    ) -> None:
        """Begin to watch.

        Args:
            console: where to print.
            shows_failures: print a line for each broken law.
            folder: where the processes of the run note what they wait for; None if they do not.
        """
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
        self._next: dict[tuple[str, str], float] = {}
        self._has_ended = threading.Event()
        if folder is not None:
            threading.Thread(target=self._watch, args=(folder,), daemon=True).start()

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
        self._has_ended.set()
        self._bar.stop()

    def _watch(self, folder: Path) -> None:
        while not self._has_ended.wait(LOOKING):
            self.print_waits(folder, time.time())

    def print_waits(self, folder: Path, now: float) -> None:
        """Print each call that has been waited for longer than at the last line about it.

        Args:
            folder: with files `*.waiting`, as `attnspec.conformance.runner.waiting` writes them.
            now: seconds since the epoch.
        """
        for path in sorted(folder.glob("*.waiting")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                note = json.loads(path.read_text(encoding="utf-8"))
                what, since, limit = str(note["what"]), float(note["since"]), float(note["limit"])
                spent, is_stale = now - since, now - path.stat().st_mtime > STALE
                wait = path.name, what
                if is_stale or spent < self._next.get(wait, FIRST_WAIT) or self._has_ended.is_set():
                    continue
                self._next[wait] = GROWTH * spent
                begun = time.strftime("%H:%M:%S", time.localtime(since))
                self._print(
                    f"waiting since {begun}, {spent:.0f} s of at most {limit:.0f} s, for "
                    f"{escape_controls(what)[:WIDTH]}"
                )

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._console.file.flush()
