"""Soundness: does the error bound ever reject an implementation that is correct?

`python -m attnspec.conformance.soundness --cases 2000` draws calls, computes each in every way of
`attnspec.conformance.soundness_variants`, and prints how much of its bound each result used: the
worst element of a result, and then the largest and the median over all results. It exits with
status 1 if any result exceeded its bound.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from attnspec.conformance.compare import check_close
from attnspec.conformance.oracle import Expected, expect
from attnspec.conformance.soundness_cases import Drawn, draw_call
from attnspec.conformance.soundness_variants import VARIANTS, Variant
from attnspec.conformance.violation import Violation
from attnspec.spec import Profile, Rounding

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass
class Used:
    """How much of the bound one variant used in one dtype.

    Attributes:
        shares: of the worst element of each result.
        exceeded: what was exceeded, in words.
        vacuous: results whose bound is infinite somewhere.
    """

    shares: list[float] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)
    vacuous: int = 0


Count = dict[tuple[str, torch.dtype], Used]


def try_variant(
    variant: Variant, drawn: Drawn, known: dict[Rounding, Expected]
) -> dict[str, float | Violation]:
    """Run one variant on one call and compare every result.

    Args:
        variant: what is judged.
        drawn: what it is asked.
        known: what is expected of this call under each rounding, filled as needed.

    Returns:
        For each result the largest share of its bound that an element uses, or what is wrong.
    """
    if variant.rounding not in known:
        known[variant.rounding] = expect(drawn.call, Profile(rounding=variant.rounding))
    expected = known[variant.rounding]
    results = variant.run(drawn.call, None)
    wanted = {"out": (expected.out, expected.bound), "lse": (expected.lse, expected.lse_bound)}
    shares: dict[str, float | Violation] = {}
    for name, got in results.items():
        try:
            shares[name] = check_close(got, *wanted[name], what=name, message="exceeded")
        except Violation as violation:
            shares[name] = violation
    return shares


def measure(
    seeds: Iterable[int], dtypes: Iterable[torch.dtype] = DTYPES, longest: int = 160
) -> Count:
    """Draw a call for each seed and dtype, and try every variant that takes it."""
    count: Count = defaultdict(Used)
    dtypes = tuple(dtypes)
    for seed in seeds:
        for dtype in dtypes:
            drawn = draw_call(seed, dtype, longest)
            known: dict[Rounding, Expected] = {}
            for variant in VARIANTS:
                if not variant.takes(drawn.call):
                    continue
                used = count[variant.name, dtype]
                shares = try_variant(variant, drawn, known)
                for share in shares.values():
                    if isinstance(share, Violation):
                        where = f"{variant.name}, {dtype}, seed {seed} ({drawn.family})"
                        used.exceeded.append(f"{where}: {share.mismatch or share}")
                    used.shares.append(math.inf if isinstance(share, Violation) else share)
                used.vacuous += bool(known[variant.rounding].bound.isinf().any())
    return count


def table(count: Count) -> Table:
    """One row per variant, one column per dtype: largest and median share of the bound."""
    dtypes = sorted({dtype for _, dtype in count}, key=DTYPES.index)
    grid = Table("variant", "results", "exceeded", box=box.MARKDOWN)
    for dtype in dtypes:
        grid.add_column(f"{str(dtype).removeprefix('torch.')} max / median", justify="right")
    for name in dict.fromkeys(name for name, _ in count):
        found = [count[name, dtype] for dtype in dtypes if (name, dtype) in count]
        cells = []
        for dtype in dtypes:
            shares = count[name, dtype].shares if (name, dtype) in count else []
            cells.append(f"{max(shares):.3f} / {statistics.median(shares):.3f}" if shares else "")
        grid.add_row(
            name,
            str(sum(len(used.shares) for used in found)),
            str(sum(len(used.exceeded) for used in found)),
            *cells,
        )
    return grid


def main(
    cases: Annotated[int, typer.Option(help="Calls to draw in each dtype.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="The first seed; each call uses the next one.")] = 0,
    longest: Annotated[int, typer.Option(help="The largest number of keys.", min=1)] = 160,
) -> None:
    """Try the error bound on correct implementations, and print how much of it they use."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    count = measure(range(seed, seed + cases), DTYPES, longest)
    console = Console(width=200)
    console.print(table(count))
    exceeded = [each for used in count.values() for each in used.exceeded]
    results = sum(len(used.shares) for used in count.values())
    seconds = time.perf_counter() - started
    console.print(f"{results} results, {len(exceeded)} exceeded their bound, {seconds:.0f} s")
    for each in exceeded[:50]:
        console.print(each, soft_wrap=True)
    if exceeded:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
