"""Soundness: does the error bound ever reject an implementation that is correct?

`python -m attnspec.conformance.evidence.soundness --cases 2000` draws calls, computes them by the
correct variants of `soundness.variants`, forward and backward, and prints the share of its bound
that each result used. The share of a result is that of its worst element; the tables show the
largest share and the median over all results. The exit status is 1 if any result exceeded its
bound. With `--store FILE` finished seeds are kept in a file, and a later run with the same settings
skips them: a long run can be made in parts, and resumed after an interruption.
"""

import dataclasses
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress

from attnspec.conformance.evidence.soundness.measure import (
    DTYPES,
    BoundUsage,
    Usage,
    add_usage,
    measure_in_processes,
)
from attnspec.conformance.evidence.soundness.report import (
    SoundnessRun,
    exceedances,
    page,
    print_report,
)
from attnspec.conformance.evidence.soundness.store import Store
from attnspec.conformance.report.run import begun


def main(
    cases: Annotated[int, typer.Option(help="Calls to draw in each dtype.", min=1)] = 25_000,
    seed: Annotated[
        int, typer.Option(help="The first seed; each call uses the next one.")
    ] = 4_000_000,
    longest: Annotated[
        int,
        typer.Option(
            help="The largest number of keys; 4 times as many in one call of 25, 16 in one of 500.",
            min=1,
        ),
    ] = 64,
    variants_per_call: Annotated[
        int,
        typer.Option(
            "--each", help="Variants, of one rounding, to try on a call; 0 is all.", min=0
        ),
    ] = 1,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Processes.")] = max(
        os.cpu_count() or 1, 1
    ),
    store: Annotated[
        Path | None, typer.Option(help="Keep finished seeds in this file, and skip those in it.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the tables to this page.")] = None,
) -> None:
    """Try the error bound on correct implementations, and print the share of it that they use."""
    torch.set_num_threads(1)
    run, started = begun(device="cpu", effort="", seed=seed), time.perf_counter()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("calls", total=cases)
        limit = variants_per_call or None
        kept = None if store is None else Store(store, longest, limit)
        missing: Sequence[int] = range(seed, seed + cases)
        usage: Usage = defaultdict(BoundUsage)
        measured: Usage = {}
        if kept is not None:
            missing, usage = kept.read(range(seed, seed + cases))
        earlier = cases - len(missing)
        save = () if kept is None else (kept.append,)
        for done, total in measure_in_processes(missing, longest, limit, workers, *save):
            progress.update(task, completed=earlier + done)
            measured = total
    add_usage(usage, measured)
    soundness_run = SoundnessRun(
        calls=cases * len(DTYPES),
        first=seed,
        longest=longest,
        variants_per_call=limit,
        run=dataclasses.replace(run, seconds=time.perf_counter() - started),
        workers=workers,
    )
    print_report(usage, soundness_run, Console(width=200))
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(page(usage, soundness_run), encoding="utf-8")
    if exceedances(usage):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
