"""Soundness: does the error bound ever reject an implementation that is correct?

`python -m attnspec.conformance.soundness --cases 2000` draws calls, computes each in every way of
`attnspec.conformance.soundness_variants`, forward and backward, and prints how much of its bound
each result used: that of the worst element of a result, of which the largest and the median over
all results. It exits with status 1 if any result exceeded its bound.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from attnspec.conformance.compare import check_close, is_evidence
from attnspec.conformance.oracle import expect
from attnspec.conformance.oracle_gradients import expect_gradients
from attnspec.conformance.soundness_cases import Drawn, draw_call
from attnspec.conformance.soundness_variants import VARIANTS, Variant
from attnspec.conformance.violation import Violation
from attnspec.spec import Profile, Rounding

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

KINDS = {
    "out": "Output",
    "lse": "Log-sum-exp",
    "query": "Gradient of the queries",
    "key": "Gradient of the keys",
    "value": "Gradient of the values",
    "attn_mask": "Gradient of the mask",
}
"""The results of a variant, and what a table calls them."""

Wanted = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Used:
    """How much of the bound one variant used for one kind of result in one dtype.

    Attributes:
        shares: of the worst element of each result.
        exceeded: what was exceeded, in words.
        evident: results whose bound is small against the values.
    """

    shares: list[float] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)
    evident: int = 0


Count = dict[tuple[str, str, torch.dtype], Used]
"""By kind of result, variant and dtype."""


def wanted(drawn: Drawn, rounding: Rounding) -> Wanted:
    """What is expected of a call under a rounding, with its bound, by kind of result."""
    profile = Profile(rounding=rounding)
    forward = expect(drawn.call, profile)
    backward = expect_gradients(drawn.call, drawn.grad, profile)
    found = {"out": (forward.out, forward.bound), "lse": (forward.lse, forward.lse_bound)}
    for name in ("query", "key", "value", "attn_mask"):
        gradient = getattr(backward, name)
        if gradient is not None:
            found[name] = gradient.exact, gradient.bound
    return found


def measure(
    seeds: Iterable[int], dtypes: Iterable[torch.dtype] = DTYPES, longest: int = 160
) -> Count:
    """Draw a call for each seed and dtype, and try every variant that takes it."""
    count: Count = defaultdict(Used)
    dtypes = tuple(dtypes)
    for seed in seeds:
        for dtype in dtypes:
            drawn = draw_call(seed, dtype, longest)
            known: dict[Rounding, Wanted] = {}
            for variant in VARIANTS:
                if variant.takes(drawn.call):
                    if variant.rounding not in known:
                        known[variant.rounding] = wanted(drawn, variant.rounding)
                    _compare(variant, drawn, known[variant.rounding], count, f"seed {seed}")
    return count


def _compare(variant: Variant, drawn: Drawn, known: Wanted, count: Count, which: str) -> None:
    """Run one variant on one call and compare every result."""
    dtype = drawn.call.value.dtype
    for kind, got in variant.run(drawn.call, drawn.grad).items():
        exact, bound = known[kind]
        used = count[kind, variant.name, dtype]
        used.evident += is_evidence(exact, bound)
        message = f"{variant.name}, {which} ({drawn.family})"
        try:
            stored = None if kind == "lse" else dtype
            used.shares.append(
                check_close(got, exact, bound, what=kind, message=message, dtype=stored)
            )
        except Violation as violation:
            used.shares.append(math.inf)
            used.exceeded.append(str(violation))


def tables(count: Count) -> Iterator[Table]:
    """For each kind of result one row per variant, one column per dtype: largest and median."""
    dtypes = sorted({dtype for _, _, dtype in count}, key=DTYPES.index)
    for kind, title in KINDS.items():
        names = [name for name in _names() if any((kind, name, each) in count for each in dtypes)]
        if not names:
            continue
        grid = Table(title, "results", "evident", "exceeded", box=box.MARKDOWN)
        for dtype in dtypes:
            grid.add_column(f"{str(dtype).removeprefix('torch.')} max / median", justify="right")
        for name in names:
            found = [count[kind, name, each] for each in dtypes if (kind, name, each) in count]
            total = sum(len(used.shares) for used in found)
            shares = [count[kind, name, each].shares for each in dtypes]
            grid.add_row(
                name,
                str(total),
                f"{sum(used.evident for used in found) / total:.0%}",
                str(sum(len(used.exceeded) for used in found)),
                *(f"{max(s):.3f} / {statistics.median(s):.3f}" if s else "" for s in shares),
            )
        yield grid


def _names() -> list[str]:
    return [variant.name for variant in VARIANTS]


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
    for each in tables(count):
        console.print(each)
    exceeded = [each for used in count.values() for each in used.exceeded]
    results = sum(len(used.shares) for used in count.values())
    runs = sum(len(used.shares) for (kind, _, _), used in count.items() if kind == "out")
    console.print(
        f"{cases * len(DTYPES)} calls, {runs} runs of {len(VARIANTS)} variants, {results} results, "
        f"{len(exceeded)} beyond their bound, {time.perf_counter() - started:.0f} s"
    )
    for line in exceeded[:50]:
        console.print(line, soft_wrap=True)
    if exceeded:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
