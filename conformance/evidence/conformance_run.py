"""Evidence: stores a complete run of the suite, reduced in size, beside the pages that show it.

Run by `nox -s evidence`, or as `attnspec.conformance.evidence.conformance_run RUN.jsonl FOLDER`.
The stored file is an ordinary report, which `attnspec report` reads.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from attnspec.conformance.report.file import Report, read_report, write_atomically
from attnspec.conformance.report.record import Outcome, Record

DROPPED = ("message", "case", "snippet", "refused", "dtypes", "picture", "seed")
"""Fields about one case or one machine, which no page shows."""
NEEDED = ("subject", "law", "clauses", "outcome")
"""Required fields of a record."""
_EMPTY = json.loads(Record(subject="", law="", clauses=(), outcome=Outcome.PASSED).to_json())
"""The default value of each field of a record."""


def objections(report: Report) -> list[str]:
    """Return the reasons why a report cannot be stored as evidence: it is incomplete."""
    run = report.run
    if run is None:
        return ["it has no line about the run"]
    reasons = [] if run.is_complete else [f"it is {run.ended}"]
    reasons += [f"it is of {', '.join(run.laws)} alone"] if run.laws else []
    reasons += ["it was made at effort smoke"] if run.effort == "smoke" else []
    reasons += [f"{target} is no registered name" for target in run.targets if ":" in target]
    if all(record.outcome is Outcome.NOT_AVAILABLE for record in report.records):
        reasons.append("no law could be tried")
    return reasons


def compact(report: Report) -> str:
    """Return the lines of a report without fields that no page shows and without empty fields."""
    assert report.run is not None
    lines = [report.run.to_json(), *map(_line, report.records)]
    return "".join(f"{line}\n" for line in lines)


def _line(record: Record) -> str:
    """Return one record as compact JSON."""
    seconds = {name: round(value, 3) for name, value in record.seconds.items()}
    fields = json.loads(dataclasses.replace(record, seconds=seconds).to_json())
    kept = {
        name: value
        for name, value in fields.items()
        if name in NEEDED or (name not in DROPPED and value != _EMPTY[name])
    }
    return json.dumps(kept, ensure_ascii=False, allow_nan=False)


def main(
    made: Annotated[Path, typer.Argument(help="A file written by `attnspec check --report`.")],
    folder: Annotated[
        Path, typer.Argument(help="The folder to store it in, under the kind of its device.")
    ],
) -> None:
    """Store a run as evidence if it is complete."""
    try:
        report = read_report(made)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if reasons := objections(report):
        print(f"{made}: cannot be stored as evidence: {'; '.join(reasons)}", file=sys.stderr)
        raise typer.Exit(2)
    assert report.run is not None
    kind = torch.device(report.run.device).type
    name = "conformance.jsonl" if kind == "cpu" else f"conformance_{kind}.jsonl"
    write_atomically(folder / name, compact(report))
    print(f"{folder / name}: {len(report.records)} records")


if __name__ == "__main__":
    typer.run(main)
