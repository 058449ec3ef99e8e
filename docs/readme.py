"""The run that the README shows: cut from the last whole run, never typed.

`python docs/readme.py` puts it there anew, from what `nox -s evidence` has stored.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from attnspec.conformance.matrix import print_matrix
from attnspec.conformance.record import Record
from attnspec.conformance.report_file import read_report

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
STORED = ROOT / "docs" / "results" / "conformance.jsonl"
WIDTH = 130
CLAUSES = (
    *("ATT-1", "ATT-9", "ATT-12", "ATT-30", "MSK-1", "MSK-2", "MSK-12", "MSK-15"),
    *("HED-2", "GRD-1", "DRP-2", "TEN-9", "NUM-1", "NUM-3"),
)
"""What is shown of the matrix: a few clauses of attention from each chapter."""
TOTALS = "Laws by outcome"
BLOCK = re.compile(
    r"(?<=```console\n\$ python -m nox -s conformance\n…\n)(?P<shown>.*?)(?=```\n)", re.DOTALL
)


def printed(records: Sequence[Record]) -> list[str]:
    """The lines that a run ends with."""
    text = io.StringIO()
    print_matrix(records, Console(file=text, width=WIDTH))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def shown(records: Sequence[Record]) -> str:
    """A few lines of the matrix of attention, the counts, and who was not available."""
    calls = {each.subject for each in records if set(each.clauses) & {"ATT-1"}}
    cut = [
        replace(each, clauses=kept)
        for each in records
        if each.subject in calls
        and (kept := tuple(name for name in each.clauses if name in CLAUSES))
    ]
    few, whole = printed(cut), printed(records)
    here, there = few.index(TOTALS), whole.index(TOTALS)
    end = next(number for number, line in enumerate(whole) if number > there and line[0] == "└")
    absent = [line for line in whole[end:] if ": not available here: " in line]
    return "\n".join([*few[:here], *whole[there : end + 1], *absent, ""])


def written(readme: str, records: Sequence[Record]) -> str:
    """The README with the run in its place.

    Raises:
        ValueError: where it has no such place.
    """
    text, count = BLOCK.subn(lambda _: shown(records), readme)
    if count != 1:
        raise ValueError(f"the README shows {count} runs, where one was expected")
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(), read_report(STORED).records))
