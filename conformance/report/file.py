"""Report files: a header line, then one line per record, each a JSON object."""

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnspec.conformance.report.record import Record
from attnspec.conformance.report.run import Run


@dataclass(frozen=True, kw_only=True)
class Report:
    """The records of a run, with its header.

    Attributes:
        run: how the records were made; `None` for a file without a header.
        records: one per law and subject, and one per known deviation.
    """

    run: Run | None
    records: tuple[Record, ...]


class ReportWriter:
    """A writer of a report whose file is a valid report at any time.

    Until `end` is called, the header marks the report as partial.
    """

    def __init__(self, path: Path, run: Run) -> None:
        """Replace the file by a report without records."""
        self.path = path
        write_atomically(path, f"{run.to_json()}\n")

    def add(self, record: Record) -> None:
        """Append one record as a whole line, in one write."""
        with self.path.open("ab") as file:
            file.write(_encoded(f"{record.to_json()}\n"))

    def end(self, run: Run, records: Iterable[Record]) -> None:
        """Replace the file, atomically, by one whose header says how the run ended."""
        lines = [run.to_json(), *(record.to_json() for record in records)]
        write_atomically(self.path, "".join(f"{line}\n" for line in lines))


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically: at any time it holds either the old text or the new one.

    Anything but a regular file, such as a pipe or `/dev/stdout`, is written to and not replaced.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(_encoded(text))
        return
    path = path.resolve()  # replace the target of a link, not the link
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encoded(text))
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # the mode of a file that `open` creates
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _encoded(text: str) -> bytes:
    r"""Encode text as UTF-8; lone surrogates become escapes such as `\ud800`, as in JSON."""
    return text.encode("utf-8", errors="backslashreplace")


def read_report(path: Path) -> Report:
    """Read a report.

    Args:
        path: a file that `--report` wrote; files of earlier versions may lack the header.

    Returns:
        The report. If the run was killed while writing, its incomplete last line is left out.

    Raises:
        ValueError: if the file is not a report; the message names the file, line and reason.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a report: it is not valid UTF-8") from None
    # not `splitlines`: JSON strings may hold other characters that end a line
    lines = text.split("\n")
    incomplete = lines.pop()
    run: Run | None = None
    records = []
    for number, line in enumerate([*lines, incomplete], start=1):
        if not line.strip():
            continue
        try:
            if number == 1 and line.startswith('{"run":'):
                run = Run.from_json(line)
            else:
                records.append(Record.from_json(line))
        except ValueError as error:
            if number > len(lines) > 0 and run is not None and not run.is_complete:
                break
            raise ValueError(f"{path}, line {number}: {error}") from None
    if run is None and not records:
        raise ValueError(f"{path}: it has no records")
    return Report(run=run, records=tuple(records))
