"""Measure soundness: draw calls, compute them by correct variants, and compare with the bounds."""

import math
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

import torch

from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.oracle_gradients import expect_gradients
from attnspec.conformance.comparison.close import check_close, is_evidence
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.evidence.soundness.cases import DrawnCall, draw_call
from attnspec.conformance.evidence.soundness.variants import VARIANTS, Variant
from attnspec.spec import Profile, Rounding

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

RUN = "any result"
"""The kind of result for a whole run, counted by the largest share of its results."""

Expected = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass
class BoundUsage:
    """The shares of the bound that one variant used for one kind of result in one dtype.

    Attributes:
        shares: for each result, the share of its worst element.
        exceeded: a description of each result that exceeded its bound.
        evident: number of results whose bound is small relative to the values.
    """

    shares: list[float] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)
    evident: int = 0


Usage = dict[tuple[str, str, torch.dtype], BoundUsage]
"""Shares of the bound by kind of result, variant and dtype."""


def expected_results(drawn: DrawnCall, rounding: Rounding) -> Expected:
    """Return the exact results of a call and their bounds under a rounding, by kind of result."""
    profile = Profile(rounding=rounding)
    forward = expect(drawn.call, profile)
    backward = expect_gradients(drawn.call, drawn.grad, profile)
    expected = {"out": (forward.out, forward.bound), "lse": (forward.lse, forward.lse_bound)}
    for name in ("query", "key", "value", "attn_mask"):
        gradient = getattr(backward, name)
        if gradient is not None:
            expected[name] = gradient.exact, gradient.bound
    return expected


def select_variants(drawn: DrawnCall, seed: int, limit: int | None) -> list[Variant]:
    """Return the variants to try on a call.

    Args:
        drawn: the call.
        seed: the seed of the call; the next seed starts with another variant.
        limit: the largest number of variants, all of one rounding, which share one bound;
            `None` selects every variant that takes the call.
    """
    candidates = [variant for variant in VARIANTS if variant.takes(drawn.call)]
    if limit is None:
        return candidates
    start = seed % len(candidates)
    rotated = candidates[start:] + candidates[:start]
    return [variant for variant in rotated if variant.rounding == rotated[0].rounding][:limit]


def longest_of(seed: int, longest: int) -> int:
    """Return the largest number of keys of the call of a seed."""
    if seed % 500 == 275:
        return 16 * longest
    return 4 * longest if seed % 25 == 0 else longest


def measure(
    seeds: Iterable[int],
    dtypes: Iterable[torch.dtype] = DTYPES,
    longest: int = 160,
    limit: int | None = None,
) -> Usage:
    """Draw a call for each seed and dtype, and try some variants on it.

    One call in 25 is up to four times as long as the others, and one in 500 up to 16 times.
    """
    usage: Usage = defaultdict(BoundUsage)
    dtypes = tuple(dtypes)
    for seed in seeds:
        for dtype in dtypes:
            drawn = draw_call(seed, dtype, longest_of(seed, longest))
            expected: dict[Rounding, Expected] = {}
            for variant in select_variants(drawn, seed, limit):
                if variant.rounding not in expected:
                    expected[variant.rounding] = expected_results(drawn, variant.rounding)
                _compare(variant, drawn, expected[variant.rounding], usage, f"seed {seed}")
    return usage


def _compare(
    variant: Variant, drawn: DrawnCall, expected: Expected, usage: Usage, label: str
) -> None:
    """Run one variant on one call, compare every result and add the shares to `usage`."""
    dtype = drawn.call.value.dtype
    whole = usage[RUN, variant.name, dtype]
    worst, is_evident, exceeded = 0.0, False, len(whole.exceeded)
    for kind, got in variant.run(drawn.call, drawn.grad).items():
        exact, bound = expected[kind]
        used = usage[kind, variant.name, dtype]
        evident = is_evidence(exact, bound)
        message = f"{variant.name}, {label} ({drawn.family})"
        try:
            stored = None if kind == "lse" else dtype
            share = check_close(got, exact, bound, what=kind, message=message, dtype=stored)
        except Violation as violation:
            share = math.inf
            used.exceeded.append(str(violation))
            whole.exceeded[exceeded:] = [str(violation)]
        used.shares.append(share)
        used.evident += evident
        worst, is_evident = max(worst, share), is_evident or evident
    whole.shares.append(worst)
    whole.evident += is_evident


def add_usage(total: Usage, usage: Usage) -> None:
    """Add the shares of some seeds to those of others."""
    for key, used in usage.items():
        total[key].shares += used.shares
        total[key].exceeded += used.exceeded
        total[key].evident += used.evident


def measure_in_processes(
    seeds: Sequence[int],
    longest: int,
    limit: int | None,
    workers: int,
    store: Callable[[Sequence[int], Usage], None] = lambda seeds, usage: None,
    chunk: int = 50,
) -> Iterator[tuple[int, Usage]]:
    """Measure in several processes.

    Args:
        seeds: the seeds of the calls.
        longest: the largest number of keys.
        limit: the largest number of variants for one call, as for `select_variants`.
        workers: the number of processes.
        store: called with the seeds and the shares of each finished task.
        chunk: the number of seeds in one task.

    Yields:
        The number of seeds tried so far, and the shares of the bound on them.
    """
    total: Usage = defaultdict(BoundUsage)
    chunks = [seeds[start : start + chunk] for start in range(0, len(seeds), chunk)]
    done = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(measure, part, DTYPES, longest, limit): part for part in chunks}
        for future in as_completed(futures):
            usage = future.result()
            store(futures[future], usage)
            add_usage(total, usage)
            done += len(futures[future])
            yield done, total
