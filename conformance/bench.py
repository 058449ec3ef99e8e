"""The benchmark: seconds per implementation, and the share that is the suite's own overhead.

Run by `nox -s bench`, or `python -m attnspec.conformance.bench [NAME ...] [--report FILE]`.
Times are those of one process with one thread; compare ratios within one run, not seconds
between machines.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from attnspec.conformance.effort import Effort
from attnspec.conformance.kills import chosen, first_kill, kind_of
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.markdown_table import markdown
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.report_file import write_whole
from attnspec.conformance.report_run import Run, begun
from attnspec.conformance.subject import Subject
from attnspec.conformance.targets import every_name, resolve
from attnspec.conformance.trials import trials


def measure(names: Sequence[str]) -> dict[str, tuple[list[Record], float]]:
    """Try every law on each implementation; also the seconds that each spent compiling."""
    measured = {}
    for name in names:
        subjects = resolve(name)
        records = [trial.run(Effort.STANDARD) for trial in trials(subjects)]
        compiling = sum(each.seconds.get("compiling", 0.0) for each in records)
        for judged in subjects:
            if isinstance(judged.subject, Subject) and judged.subject.implementation.counters:
                compiling += judged.subject.implementation.counters().compile_seconds
        measured[name] = records, compiling
    return measured


def table(measured: dict[str, tuple[list[Record], float]]) -> Table:
    """Seconds per implementation: in it, in the oracle and the bound, and the share outside."""
    shown = Table(title="Seconds of a standard run, one process, one thread")
    for title in (
        "implementation",
        "laws",
        "cases",
        "total",
        "compiling",
        "implementation",
        "oracle",
    ):
        shown.add_column(title, justify="left" if title == "implementation" else "right")
    shown.add_column("outside both", justify="right")
    shown.add_column("slowest law")
    for name, (records, compiling) in measured.items():
        ran = [each for each in records if each.outcome is not Outcome.NOT_AVAILABLE]
        if not ran:
            shown.add_row(name, *[""] * 7, f"not available here: {records[0].reason}")
            continue
        parts = {
            part: sum(each.seconds.get(part, 0.0) for each in ran)
            for part in ("total", "implementation", "oracle", "bound")
        }
        running = parts["implementation"] - compiling
        judging = parts["oracle"] + parts["bound"]
        outside = parts["total"] - parts["implementation"] - judging
        slowest = max(ran, key=lambda each: each.seconds["total"])
        shown.add_row(
            name,
            str(len(ran)),
            str(sum(each.examples for each in ran)),
            f"{parts['total']:.1f}",
            f"{compiling:.1f}",
            f"{running:.1f}",
            f"{judging:.1f}",
            f"{outside / (parts['total'] - compiling):.0%}",
            f"{slowest.law} {slowest.seconds['total']:.1f}",
        )
    return shown


SAMPLE = "1/10"
"""The part of the mutants by which the time to a first verdict is measured."""


def first_verdict() -> tuple[float, float]:
    """Median and largest seconds from the first pinned case to the first failing law, over mutants.

    A mutant meets the laws in the order in which a run tries them.
    """
    mutants = [each for each in chosen(part=SAMPLE) if kind_of(each) is Judged.ATTENTION]
    laws = [law for law in registered().values() if law.judges is Judged.ATTENTION]
    told = [first_kill(each, laws, Effort.SMOKE) for each in mutants]
    seconds = [each["seconds"] for each in told if each]
    return statistics.median(seconds), max(seconds)


def sentence(median: float, longest: float) -> str:
    """How soon a broken kernel is told."""
    return (
        f"First verdict on a broken kernel, of part {SAMPLE} of the mutants of attention: "
        f"median {median:.2f} s, longest {longest:.2f} s"
    )


def page(shown: Table, verdict: str, run: Run) -> str:
    """The figures as Markdown, with how they were made."""
    return f"{run.told}.\n\n**{verdict}.**\n\n{markdown(shown)}\n"


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Registered names; none: all registered.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the figures to this page.")] = None,
) -> None:
    """Time a standard run of implementations, and the first verdict on broken ones."""
    torch.set_num_threads(1)
    run = begun(device="cpu", effort="standard", seed=None, targets=names or [])
    started = time.perf_counter()
    console = Console(width=None if sys.stdout.isatty() else 170)
    shown = table(measure(names or every_name()))
    console.print(shown)
    verdict = sentence(*first_verdict())
    console.print(verdict)
    if report is not None:
        run = dataclasses.replace(run, seconds=time.perf_counter() - started)
        write_whole(report, page(shown, verdict, run))


if __name__ == "__main__":
    typer.run(main)
