"""The report on soundness: tables of how much of the bound correct arithmetic uses."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from attnspec.conformance.markdown_table import markdown
from attnspec.conformance.report_run import Run
from attnspec.conformance.soundness_measure import DTYPES, RUN, Count
from attnspec.conformance.soundness_variants import VARIANTS

KINDS = {
    RUN: "All results of a run together",
    "out": "Output",
    "lse": "Log-sum-exp",
    "query": "Gradient of the queries",
    "key": "Gradient of the keys",
    "value": "Gradient of the values",
    "attn_mask": "Gradient of the mask",
}
"""The results of a variant, and what a table calls them."""

ENOUGH = 10
"""Results from which on a median is worth printing."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What was measured, and how.

    Attributes:
        calls: how many were drawn, in all dtypes together.
        first: the seed of the first.
        longest: the largest number of keys.
        each: variants tried on a call at most; `None` is all.
        run: with what, and in how many seconds.
        workers: processes.
    """

    calls: int
    first: int
    longest: int
    each: int | None
    run: Run
    workers: int


def exceedances(count: Count) -> list[str]:
    """Every result beyond its bound, in words."""
    return [line for (kind, _, _), used in count.items() if kind != RUN for line in used.exceeded]


def summary(count: Count, session: Session) -> str:
    """Everything in a sentence."""
    runs = sum(len(used.shares) for (kind, _, _), used in count.items() if kind == RUN)
    results = sum(len(used.shares) for (kind, _, _), used in count.items() if kind != RUN)
    names = {name for _, name, _ in count}
    return (
        f"{session.calls:,} calls, {runs:,} runs of {len(names)} variants, "
        f"{results:,} results, {len(exceedances(count)):,} beyond their bound"
    )


def tables(count: Count) -> Iterator[Table]:
    """For each kind of result one row per variant, one column per dtype: largest and median."""
    dtypes = sorted({dtype for _, _, dtype in count}, key=DTYPES.index)
    for kind, title in KINDS.items():
        names = [each.name for each in VARIANTS]
        names = [name for name in names if any((kind, name, each) in count for each in dtypes)]
        if not names:
            continue
        grid = Table(title, box=box.MARKDOWN)
        for heading in ("runs" if kind == RUN else "results", "evident", "exceeded"):
            grid.add_column(heading, justify="right")
        for dtype in dtypes:
            grid.add_column(f"{str(dtype).removeprefix('torch.')} max / median", justify="right")
        for name in names:
            found = [count[kind, name, each] for each in dtypes if (kind, name, each) in count]
            total = sum(len(used.shares) for used in found)
            shares = [
                count[kind, name, each].shares if (kind, name, each) in count else []
                for each in dtypes
            ]
            grid.add_row(
                name,
                f"{total:,}",
                f"{sum(used.evident for used in found) / total:.0%}",
                str(sum(len(used.exceeded) for used in found)),
                *map(_share, shares),
            )
        yield grid


def _share(shares: list[float]) -> str:
    if not shares:
        return ""
    median = f"{statistics.median(shares):.3f}" if len(shares) >= ENOUGH else "-"
    return f"{max(shares):.3f} / {median}"


def print_report(count: Count, session: Session, console: Console) -> None:
    """Print the tables, the sentence and the first few exceedances."""
    for each in tables(count):
        console.print(each)
    console.print(f"{summary(count, session)}, {session.run.seconds or 0.0:.0f} s", highlight=False)
    for line in exceedances(count)[:50]:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def page(count: Count, session: Session) -> str:
    """The report as Markdown, with everything that it takes to repeat it."""
    wanted = f"--seed {session.first} --cases {session.calls // len(DTYPES)}"
    wanted += f" --longest {session.longest} --each {session.each or 0}"
    lines = [
        f"**{summary(count, session)}.**",
        "",
        f"{session.run.told} on {session.workers} processes, by",
        "",
        "```text",
        f"python -m attnspec.conformance.soundness {wanted}",
        "```",
    ]
    if exceeded := exceedances(count):
        lines += ["", "Beyond their bound:", "", *(f"- {line}" for line in exceeded[:50])]
    for each in tables(count):
        lines += ["", markdown(each)]
    return "\n".join(lines) + "\n"
