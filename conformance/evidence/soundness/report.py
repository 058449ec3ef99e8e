"""The report on soundness: tables of the share of the bound that correct arithmetic uses."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from attnspec.conformance.evidence.soundness.measure import DTYPES, RUN, Usage
from attnspec.conformance.evidence.soundness.variants import VARIANTS
from attnspec.conformance.report.markdown_table import markdown
from attnspec.conformance.report.run import Run

KINDS = {
    RUN: "All results of a run together",
    "out": "Output",
    "lse": "Log-sum-exp",
    "query": "Gradient of the queries",
    "key": "Gradient of the keys",
    "value": "Gradient of the values",
    "attn_mask": "Gradient of the mask",
}
"""Kinds of results of a variant and the titles of their tables."""

ENOUGH = 10
"""The smallest number of results for which a median is printed."""


@dataclass(frozen=True, kw_only=True)
class SoundnessRun:
    """The settings of one run.

    Attributes:
        calls: the number of calls, in all dtypes together.
        first: the seed of the first call.
        longest: the largest number of keys.
        variants_per_call: the largest number of variants for one call; `None` is all.
        run: versions, machine and seconds.
        workers: the number of processes.
    """

    calls: int
    first: int
    longest: int
    variants_per_call: int | None
    run: Run
    workers: int


def exceedances(usage: Usage) -> list[str]:
    """Describe every result beyond its bound."""
    return [line for (kind, _, _), used in usage.items() if kind != RUN for line in used.exceeded]


def summary(usage: Usage, soundness_run: SoundnessRun) -> str:
    """Return a sentence with all totals."""
    runs = sum(len(used.shares) for (kind, _, _), used in usage.items() if kind == RUN)
    results = sum(len(used.shares) for (kind, _, _), used in usage.items() if kind != RUN)
    names = {name for _, name, _ in usage}
    return (
        f"{soundness_run.calls:,} calls, {runs:,} runs of {len(names)} variants, "
        f"{results:,} results, {len(exceedances(usage)):,} beyond their bound"
    )


def tables(usage: Usage) -> Iterator[Table]:
    """Yield a table for each kind of result: a row per variant, a column per dtype."""
    dtypes = sorted({dtype for _, _, dtype in usage}, key=DTYPES.index)
    for kind, title in KINDS.items():
        names = [variant.name for variant in VARIANTS]
        names = [name for name in names if any((kind, name, dtype) in usage for dtype in dtypes)]
        if not names:
            continue
        grid = Table(title, box=box.MARKDOWN)
        for heading in ("runs" if kind == RUN else "results", "evident", "exceeded"):
            grid.add_column(heading, justify="right")
        for dtype in dtypes:
            grid.add_column(f"{str(dtype).removeprefix('torch.')} max / median", justify="right")
        for name in names:
            row = [usage[kind, name, dtype] for dtype in dtypes if (kind, name, dtype) in usage]
            total = sum(len(used.shares) for used in row)
            shares = [
                usage[kind, name, dtype].shares if (kind, name, dtype) in usage else []
                for dtype in dtypes
            ]
            grid.add_row(
                name,
                f"{total:,}",
                f"{sum(used.evident for used in row) / total:.0%}",
                str(sum(len(used.exceeded) for used in row)),
                *map(_share, shares),
            )
        yield grid


def _share(shares: list[float]) -> str:
    """Return the largest and the median share, in words."""
    if not shares:
        return ""
    median = f"{statistics.median(shares):.3f}" if len(shares) >= ENOUGH else "-"
    return f"{max(shares):.3f} / {median}"


def print_report(usage: Usage, soundness_run: SoundnessRun, console: Console) -> None:
    """Print the tables, the totals and the first exceedances."""
    for table in tables(usage):
        console.print(table)
    console.print(
        f"{summary(usage, soundness_run)}, {soundness_run.run.seconds or 0.0:.0f} s",
        highlight=False,
    )
    for line in exceedances(usage)[:50]:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def page(usage: Usage, soundness_run: SoundnessRun) -> str:
    """Return the report as Markdown, with the command that repeats it."""
    options = f"--seed {soundness_run.first} --cases {soundness_run.calls // len(DTYPES)}"
    options += f" --longest {soundness_run.longest} --each {soundness_run.variants_per_call or 0}"
    workers = soundness_run.workers
    processes = "1 process" if workers == 1 else f"{workers} processes"
    lines = [
        f"**{summary(usage, soundness_run)}.**",
        "",
        f"{soundness_run.run.summary} on {processes}, by",
        "",
        "```text",
        f"python -m attnspec.conformance.evidence.soundness {options}",
        "```",
    ]
    if exceeded := exceedances(usage):
        lines += ["", "Beyond their bound:", "", *(f"- {line}" for line in exceeded[:50])]
    for table in tables(usage):
        lines += ["", markdown(table)]
    return "\n".join(lines) + "\n"
