"""Soundness: does the error bound ever reject an implementation that is correct?

`python -m attnspec.conformance.soundness --cases 2000` draws calls, computes them in the ways of
`attnspec.conformance.soundness_variants`, forward and backward, and prints how much of its bound
each result used: that of the worst element of a result, of which the largest and the median over
all results. It exits with status 1 if any result exceeded its bound.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from attnspec.conformance.report_run import begun
from attnspec.conformance.soundness_measure import DTYPES, measure_apart
from attnspec.conformance.soundness_report import Session, exceedances, page, print_report


def main(
    cases: Annotated[int, typer.Option(help="Calls to draw in each dtype.", min=1)] = 25_000,
    seed: Annotated[
        int, typer.Option(help="The first seed; each call uses the next one.")
    ] = 4_000_000,
    longest: Annotated[
        int,
        typer.Option(
            help="The largest number of keys; four times as many in one call of 25.", min=1
        ),
    ] = 64,
    each: Annotated[
        int, typer.Option(help="Variants, of one rounding, to try on a call; 0 is all.", min=0)
    ] = 1,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Processes.")] = max(
        os.cpu_count() or 1, 1
    ),
    report: Annotated[Path | None, typer.Option(help="Write the tables to this page.")] = None,
) -> None:
    """Try the error bound on correct implementations, and print how much of it they use."""
    torch.set_num_threads(1)
    run, started = begun(device="cpu", effort="", seed=seed), time.perf_counter()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("calls", total=cases)
        seeds = range(seed, seed + cases)
        for done, found in measure_apart(seeds, longest, each or None, workers):
            progress.update(task, completed=done)
            count = found
    session = Session(
        calls=cases * len(DTYPES),
        first=seed,
        longest=longest,
        each=each or None,
        run=dataclasses.replace(run, seconds=time.perf_counter() - started),
        workers=workers,
    )
    print_report(count, session, Console(width=200))
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(page(count, session), encoding="utf-8")
    if exceedances(count):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
