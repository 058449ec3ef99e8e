"""Measuring soundness: calls are drawn, computed in many correct ways, and compared with bounds."""

import math
import multiprocessing
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

import torch

from attnspec.conformance.compare import check_close, is_evidence
from attnspec.conformance.oracle import expect
from attnspec.conformance.oracle_gradients import expect_gradients
from attnspec.conformance.soundness_cases import Drawn, draw_call
from attnspec.conformance.soundness_variants import VARIANTS, Variant
from attnspec.conformance.violation import Violation
from attnspec.spec import Profile, Rounding

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

RUN = "any result"
"""The kind of result under which a run counts as a whole, by the worst of its results."""

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


def dealt(drawn: Drawn, seed: int, each: int | None) -> list[Variant]:
    """The variants that a call is tried on.

    Args:
        drawn: the call.
        seed: of the call; the next one starts with another variant.
        each: how many at most, all of one rounding, so that one bound serves them; `None`
            is every variant that takes the call.
    """
    able = [variant for variant in VARIANTS if variant.takes(drawn.call)]
    if each is None:
        return able
    start = seed % len(able)
    turned = able[start:] + able[:start]
    return [variant for variant in turned if variant.rounding == turned[0].rounding][:each]


def measure(
    seeds: Iterable[int],
    dtypes: Iterable[torch.dtype] = DTYPES,
    longest: int = 160,
    each: int | None = None,
) -> Count:
    """Draw a call for each seed and dtype, and try the variants that it is dealt.

    One call in 25 is up to four times as long as the others.
    """
    count: Count = defaultdict(Used)
    dtypes = tuple(dtypes)
    for seed in seeds:
        for dtype in dtypes:
            drawn = draw_call(seed, dtype, longest * (4 if seed % 25 == 0 else 1))
            known: dict[Rounding, Wanted] = {}
            for variant in dealt(drawn, seed, each):
                if variant.rounding not in known:
                    known[variant.rounding] = wanted(drawn, variant.rounding)
                _compare(variant, drawn, known[variant.rounding], count, f"seed {seed}")
    return count


def _compare(variant: Variant, drawn: Drawn, known: Wanted, count: Count, which: str) -> None:
    """Run one variant on one call and compare every result."""
    dtype = drawn.call.value.dtype
    whole = count[RUN, variant.name, dtype]
    worst, is_evident, exceeded = 0.0, False, len(whole.exceeded)
    for kind, got in variant.run(drawn.call, drawn.grad).items():
        exact, bound = known[kind]
        used = count[kind, variant.name, dtype]
        evident = is_evidence(exact, bound)
        message = f"{variant.name}, {which} ({drawn.family})"
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


def measure_apart(
    seeds: range, longest: int, each: int | None, workers: int, at_once: int = 50
) -> Iterator[tuple[int, Count]]:
    """Measure in several processes.

    Args:
        seeds: of the calls.
        longest: the largest number of keys.
        each: as for `dealt`.
        workers: how many processes.
        at_once: seeds that a process is handed at a time.

    Yields:
        How many seeds have been tried, and what has been counted on them.
    """
    total: Count = defaultdict(Used)
    parts = [seeds[at : at + at_once] for at in range(0, len(seeds), at_once)]
    done = 0
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(measure, part, DTYPES, longest, each): len(part) for part in parts}
        for future in as_completed(waiting):
            for key, used in future.result().items():
                total[key].shares += used.shares
                total[key].exceeded += used.exceeded
                total[key].evident += used.evident
            done += waiting[future]
            yield done, total
