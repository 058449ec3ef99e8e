"""The benchmark: seconds per implementation, and the share of the suite's own overhead.

Run by `nox -s bench`, or as `attnspec.conformance.evidence.benchmark [NAME ...] [--report FILE]`.
All times are of one process with one thread. Compare ratios within one run, not seconds between
machines.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.evidence.mutation.kills import (
    first_kill,
    kind_of,
    select_mutants,
    subject_of,
)
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.probe.following import experiment_on
from attnspec.conformance.report.file import write_atomically
from attnspec.conformance.report.markdown_table import markdown
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.report.run import Run, begun
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.in_process import run_in_process
from attnspec.conformance.runner.smaller import with_smaller_case
from attnspec.conformance.runner.targets import every_name, resolve
from attnspec.conformance.runner.task import tasks
from attnspec.conformance.subjects.kinds import SubjectKind


def measure(names: Sequence[str]) -> dict[str, tuple[list[Record], float]]:
    """Run every law on each implementation and return the records and the seconds of compiling."""
    measured = {}
    for name in names:
        subjects = resolve(name)
        records = [run_in_process(task, Effort.STANDARD) for task in tasks(subjects)]
        compiling = sum(record.seconds.get("compiling", 0.0) for record in records)
        for loaded in subjects:
            if isinstance(loaded.subject, Subject) and loaded.subject.implementation.counters:
                compiling += loaded.subject.implementation.counters().compile_seconds
        measured[name] = records, compiling
    return measured


def table(measured: dict[str, tuple[list[Record], float]]) -> Table:
    """Return a table of seconds: total, in the implementation, in the oracle and outside both."""
    times = Table(title="Seconds of a standard run, one process, one thread")
    for title in (
        "implementation",
        "laws",
        "cases",
        "total",
        "compiling",
        "implementation",
        "oracle",
    ):
        times.add_column(title, justify="left" if title == "implementation" else "right")
    times.add_column("outside both", justify="right")
    times.add_column("slowest law")
    for name, (records, compiling) in measured.items():
        ran = [record for record in records if record.outcome is not Outcome.NOT_AVAILABLE]
        if not ran:
            times.add_row(name, *[""] * 7, f"not available here: {records[0].reason}")
            continue
        parts = {
            part: sum(record.seconds.get(part, 0.0) for record in ran)
            for part in ("total", "implementation", "oracle", "bound")
        }
        running = parts["implementation"] - compiling
        oracle = parts["oracle"] + parts["bound"]
        outside = parts["total"] - parts["implementation"] - oracle
        slowest = max(ran, key=lambda record: record.seconds["total"])
        times.add_row(
            name,
            str(len(ran)),
            str(sum(record.examples for record in ran)),
            f"{parts['total']:.1f}",
            f"{compiling:.1f}",
            f"{running:.1f}",
            f"{oracle:.1f}",
            f"{outside / (parts['total'] - compiling):.0%}",
            f"{slowest.law} {slowest.seconds['total']:.1f}",
        )
    return times


SAMPLE = "1/10"
"""The part of the mutants on which the time to the first failure is measured."""


def first_verdict() -> tuple[float, float]:
    """Return the median and largest seconds from the first pinned case to the first failing law.

    The sample is a part of the mutants (planted bugs). Laws run in their usual order.
    """
    mutants = [
        mutant for mutant in select_mutants(part=SAMPLE) if kind_of(mutant) is SubjectKind.ATTENTION
    ]
    attention_laws = [law for law in laws.load().values() if law.judges is SubjectKind.ATTENTION]
    kills = [first_kill(mutant, attention_laws, Effort.SMOKE) for mutant in mutants]
    seconds = [kill["seconds"] for kill in kills if kill]
    return statistics.median(seconds), max(seconds)


def smallest_call() -> tuple[float, float]:
    """Return the median and largest seconds to the smallest call that fails, and its sizes.

    They are spent after the first verdict, on the same mutants and the laws that they name.
    """
    seconds = []
    for mutant in select_mutants(part=SAMPLE):
        law = laws.load()[mutant.killed_by]
        if law.judges is not SubjectKind.ATTENTION:
            continue
        cases: list[Any] = []
        subject = subject_of(mutant)
        record = check(law, subject, Effort.SMOKE, seed=0, on_case=cases.append)
        if record.outcome is Outcome.FAILED:
            started = time.perf_counter()
            with_smaller_case(law, subject, cases[-1], record)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), max(seconds)


def sentence(median: float, longest: float, what: str = "First verdict on") -> str:
    """Return a sentence on the time to the first failure on a broken kernel, or another time."""
    return (
        f"{what} a broken kernel, of part {SAMPLE} of the mutants of attention: "
        f"median {median:.2f} s, longest {longest:.2f} s"
    )


def experiments_sentence() -> str:
    """Time the experiments that `attnspec check` makes on a function without a declaration."""
    function = dense("undeclared", Dense())
    started = time.perf_counter()
    experiment_on(function, "cpu")
    return f"Experiments on a function without a declaration: {time.perf_counter() - started:.1f} s"


def page(times: Table, sentences: Sequence[str], run: Run) -> str:
    """Return the figures as Markdown, with a summary of the run."""
    lines = "".join(f"**{each}.**\n\n" for each in sentences)
    return f"{run.summary}.\n\n{lines}{markdown(times)}\n"


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Registered names; none: all registered.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures to this page.")] = None,
) -> None:
    """Time a standard run on implementations, and the first failure on broken ones."""
    torch.set_num_threads(1)
    run = begun(device="cpu", effort="standard", seed=None, targets=names or [])
    started = time.perf_counter()
    console = Console(width=None if sys.stdout.isatty() else 170)
    experiments = experiments_sentence()  # first, as in the process that makes them
    times = table(measure(names or every_name()))
    console.print(times)
    verdict = sentence(*first_verdict())
    verdict += "; " + sentence(*smallest_call(), "then, for the smallest call that fails in")
    sentences = [verdict, experiments]
    for each in sentences:
        console.print(each)
    if report is not None:
        run = dataclasses.replace(run, seconds=time.perf_counter() - started)
        write_atomically(report, page(times, sentences, run))


if __name__ == "__main__":
    typer.run(main)
