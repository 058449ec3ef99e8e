"""Evidence: a whole run of the suite, made small enough to be kept beside the pages that show it.

Run by `nox -s evidence`, or `python -m attnspec.conformance.evidence RUN.jsonl FOLDER`. What is
kept is a report like any other, which `attnspec report` reads.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.report_file import Report, read_report, write_whole

DROPPED = ("message", "case", "snippet", "refused", "dtypes", "picture", "seed")
"""What tells of one case, or of one machine, and of no clause."""
NEEDED = ("subject", "law", "clauses", "outcome")
"""What a record cannot do without."""
_EMPTY = json.loads(Record(subject="", law="", clauses=(), outcome=Outcome.PASSED).to_json())
"""What a record holds that says nothing."""


def objections(report: Report) -> list[str]:
    """Why a report is no evidence: it does not tell everything of what it is about."""
    run = report.run
    if run is None:
        return ["it does not say how it was made"]
    found = [] if run.is_complete else [f"it is {run.ended}"]
    found += [f"it is of {', '.join(run.laws)} alone"] if run.laws else []
    found += ["it was made at effort smoke"] if run.effort == "smoke" else []
    found += [f"{each} is no registered name" for each in run.targets if ":" in each]
    if all(each.outcome is Outcome.NOT_AVAILABLE for each in report.records):
        found.append("nothing could be tried")
    return found


def small(report: Report) -> str:
    """The lines of a report without what no page shows, and without what is empty."""
    assert report.run is not None
    lines = [report.run.to_json(), *map(_line, report.records)]
    return "".join(f"{line}\n" for line in lines)


def _line(record: Record) -> str:
    seconds = {name: round(value, 3) for name, value in record.seconds.items()}
    told = json.loads(dataclasses.replace(record, seconds=seconds).to_json())
    kept = {
        name: value
        for name, value in told.items()
        if name in NEEDED or (name not in DROPPED and value != _EMPTY[name])
    }
    return json.dumps(kept, ensure_ascii=False, allow_nan=False)


def main(
    made: Annotated[Path, typer.Argument(help="What `attnspec check --report` wrote.")],
    folder: Annotated[Path, typer.Argument(help="Where it is kept, by the kind of its device.")],
) -> None:
    """Keep a run as evidence, where it is a whole one."""
    try:
        report = read_report(made)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if wrong := objections(report):
        print(f"{made}: no evidence: {'; '.join(wrong)}", file=sys.stderr)
        raise typer.Exit(2)
    assert report.run is not None
    kind = torch.device(report.run.device).type
    name = "conformance.jsonl" if kind == "cpu" else f"conformance_{kind}.jsonl"
    write_whole(folder / name, small(report))
    print(f"{folder / name}: {len(report.records)} records")


if __name__ == "__main__":
    typer.run(main)
