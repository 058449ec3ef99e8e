"""Reports as files: a header, then one record a line, each a JSON object."""

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attnspec.conformance.record import Record
from attnspec.conformance.report_run import Run


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a run found.

    Attributes:
        run: how it was made; `None` where the file does not say.
        records: one per law and subject, and per known deviation.
    """

    run: Run | None
    records: tuple[Record, ...]


class ReportWriter:
    """Writes a report as its records come; what lies on the disk is a valid report at any time.

    Until `end`, its header says that it is partial.
    """

    def __init__(self, path: Path, run: Run) -> None:
        """Replace whatever was there by a report without records."""
        self.path = path
        write_whole(path, f"{run.to_json()}\n")

    def add(self, record: Record) -> None:
        """Write one record: a whole line in one go."""
        with self.path.open("ab") as file:
            file.write(_encoded(f"{record.to_json()}\n"))

    def end(self, run: Run, records: Iterable[Record]) -> None:
        """Write it anew with a header that says how it ended, and put it in place at once."""
        lines = [run.to_json(), *(each.to_json() for each in records)]
        write_whole(self.path, "".join(f"{line}\n" for line in lines))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that at any time either the old text is there or the new.

    What is there and is no file, such as a pipe or `/dev/stdout`, is written to and not replaced.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.write(_encoded(text))
        return
    path = path.resolve()  # what a link leads to is replaced, and not the link
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encoded(text))
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # as of a file that was simply opened
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _encoded(text: str) -> bytes:
    """UTF-8, in which lone surrogates stay what JSON writes for them."""
    return text.encode("utf-8", errors="backslashreplace")


def read_report(path: Path) -> Report:
    """Read a report.

    Args:
        path: of a file that `--report` wrote, by this version or one without headers.

    Returns:
        What is in it. The torn last line of a run that was killed while it wrote is left out.

    Raises:
        ValueError: where it cannot be read as a report, naming the file, the line and the reason.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a report: its bytes are no UTF-8") from None
    lines = text.split("\n")  # and no other character that ends a line: JSON holds them as they are
    torn = lines.pop()
    run: Run | None = None
    records = []
    for number, line in enumerate([*lines, torn], start=1):
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
        raise ValueError(f"{path}: no record in it")
    return Report(run=run, records=tuple(records))
