"""The run and the counts of mutants in the README: generated, never typed.

`python docs/readme.py` writes them again, from the results that `nox -s evidence` has stored.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from attnspec.conformance import mutants
from attnspec.conformance.report.file import read_report
from attnspec.conformance.report.matrix import print_matrix
from attnspec.conformance.report.record import Record

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
STORED = ROOT / "docs" / "results" / "conformance.jsonl"
WIDTH = 130
CLAUSES = (
    *("ATT-1", "ATT-9", "ATT-12", "ATT-30", "MSK-1", "MSK-2", "MSK-12", "MSK-15"),
    *("HED-2", "GRD-1", "DRP-2", "TEN-9", "NUM-1", "NUM-3"),
)
"""Clauses in the shortened matrix: a few of attention from each chapter."""
TOTALS = "Laws by outcome"
BLOCK = re.compile(
    r"(?<=```console\n\$ python -m nox -s conformance\n…\n)(?P<shown>.*?)(?=```\n)", re.DOTALL
)

COUNTS = re.compile(
    r"\d+ (?P<rest>mutants \(planted bugs\) test the laws: .*), \d+ of which repeat"
)


def counted(match: re.Match[str]) -> str:
    """Return the sentence that counts mutants, with the numbers of the catalogue."""
    catalogue = mutants.load().values()
    reported = sum(bool(mutant.source) for mutant in catalogue)
    return f"{len(catalogue)} {match['rest']}, {reported} of which repeat"


def printed(records: Sequence[Record]) -> list[str]:
    """Return the lines that a run prints at its end."""
    text = io.StringIO()
    print_matrix(records, Console(file=text, width=WIDTH))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def shown(records: Sequence[Record]) -> str:
    """Return a few lines of the matrix of attention, the counts, and the unavailable subjects."""
    attentions = {record.subject for record in records if "ATT-1" in record.clauses}
    selected = [
        replace(record, clauses=clauses)
        for record in records
        if record.subject in attentions
        and (clauses := tuple(name for name in record.clauses if name in CLAUSES))
    ]
    few, whole = printed(selected), printed(records)
    here, there = few.index(TOTALS), whole.index(TOTALS)
    end = next(number for number, line in enumerate(whole) if number > there and line[0] == "└")
    absent = [line for line in whole[end:] if line.startswith("not available here: ")]
    return "\n".join([*few[:here], *whole[there : end + 1], *absent, ""])


def written(readme: str, records: Sequence[Record]) -> str:
    """Return the README with the current run and number of mutants.

    Raises:
        ValueError: if the README has no place for them.
    """
    text, count = BLOCK.subn(lambda _: shown(records), readme)
    if count != 1:
        raise ValueError(f"the README shows {count} runs, expected one")
    text, count = COUNTS.subn(counted, text)
    if count != 1:
        raise ValueError(f"the README counts mutants {count} times, expected once")
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(), read_report(STORED).records))
