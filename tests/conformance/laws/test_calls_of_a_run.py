"""The calls of a whole run: how many kernels that are wrong at a few sizes together it would meet.

Adversaries record the calls of a run and aim a kernel beside them: wrong for groups of 8 beyond 512
queries at 128 channels, say. Such kernels are drawn here, each from the sizes of an affordable
call, so that one call at least shows each; what counts is whether a run makes such a call.
"""

import math
import random
from collections.abc import Callable
from functools import partial

import pytest
from basic_claims import BASIC, DTYPES, subject_of

from attnspec.conformance.attention.launches import WORK as LAUNCH
from attnspec.conformance.attention.launches import is_affordable
from attnspec.conformance.laws.helpers.triples import cases_of_triples
from attnspec.conformance.laws.numerics.launches import cases_of_launches
from attnspec.conformance.laws.numerics.regimes import cases_of_design
from attnspec.conformance.laws.numerics.workloads import cases_of_workloads
from attnspec.spec import Case

KERNELS = 1500
"""Wrong kernels for each number of sizes."""

WORK = 6e9
"""Work of a call that shows a wrong kernel: a fifth of a second on one core."""

WIDTHS = (8, 16, 32, 48, 64, 64, 72, 80, 96, 112, 128, 128, 160, 192, 256, 320, 512)
HEADS = (1, 1, 2, 3, 4, 5, 8, 16)
GROUPS = (1, 1, 2, 3, 4, 6, 7, 8, 8, 12, 16, 32)
BATCH = (1, 1, 2, 3, 4, 8, 16, 32, 64)
QUERIES = (1, 4096)
KEYS = (16, 16_384)
"""The sizes of calls, lengths by their least and largest."""

SIZES: dict[str, Callable[[Case], int]] = {
    "d_head": lambda case: case.d_head,
    "queries": lambda case: case.queries,
    "keys": lambda case: case.keys,
    "group": lambda case: case.heads // case.kv_heads,
    "kv_heads": lambda case: case.kv_heads,
    "batch": lambda case: case.batch,
    "is_causal": lambda case: int(case.is_causal),
}

Condition = Callable[[Case], bool]


def cases_of_a_run(seed):
    subject = subject_of()
    return [
        case
        for cases_of in (cases_of_design, cases_of_workloads, cases_of_launches, cases_of_triples)
        for backward in (False, True)
        for case in cases_of(subject, seed, backward=backward)
    ]


def drawn_length(first: int, last: int, dice: random.Random) -> int:
    return round(math.exp(dice.uniform(math.log(first), math.log(last))))


def drawn_call(dice: random.Random) -> Case:
    """Draw an affordable call, whose queries are as many as its keys by a third."""
    while True:
        width, kv_heads = dice.choice(WIDTHS), dice.choice(HEADS)
        keys = drawn_length(*KEYS, dice)
        queries = dice.choice((1, drawn_length(*QUERIES, dice), keys))
        case = Case(
            batch=dice.choice(BATCH),
            heads=kv_heads * dice.choice(GROUPS),
            kv_heads=kv_heads,
            queries=queries,
            keys=keys,
            d_head=width,
            d_value=width,
            dtype=dice.choice(DTYPES),
            is_causal=dice.random() < 0.5,
            backward=dice.random() < 0.5,
        )
        if is_affordable(case, WORK):
            return case


def holds(name: str, first: int, last: float, case: Case) -> bool:
    return first <= SIZES[name](case) <= last


def drawn_condition(name: str, case: Case, dice: random.Random) -> Condition:
    """Draw a condition on a size that a call satisfies.

    Half of them hold from a power of two on, the last one that the call exceeds or one of two
    before it, a quarter from one to the next, and a quarter up to the next one.
    """
    size = SIZES[name](case)
    if name == "is_causal":
        return partial(holds, name, size, size)
    power = 2 ** (size.bit_length() - 1)
    beyond = max(1, power // 2 ** dice.randint(0, 2))
    forms = ((beyond, math.inf), (beyond, math.inf), (power, 2 * power - 1), (1, 2 * power - 1))
    return partial(holds, name, *dice.choice(forms))


def drawn_kernel(count: int, dice: random.Random) -> list[Condition]:
    """Draw the conditions on some sizes under which a kernel is wrong, with gradients or not."""
    case = drawn_call(dice)
    conditions = [drawn_condition(name, case, dice) for name in dice.sample(sorted(SIZES), count)]
    kind = dice.choice((None, case.backward))
    if kind is not None:
        conditions.append(lambda other: other.backward is kind)
    return conditions


def share_met(cases, count):
    dice = random.Random(count)
    kernels = [drawn_kernel(count, dice) for _ in range(KERNELS)]
    met = sum(any(all(each(case) for each in kernel) for case in cases) for kernel in kernels)
    return met / KERNELS


LEAST_MET = {2: 0.99, 3: 0.98, 4: 0.95, 5: 0.88}
"""Shares of the kernels that a run meets, by the number of sizes, somewhat below those measured."""


@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_meets_nearly_all_kernels_that_are_wrong_at_a_few_sizes_together(seed):
    cases = cases_of_a_run(seed)
    assert all(case.dtype in DTYPES and case.features <= BASIC for case in cases)
    shares = {count: share_met(cases, count) for count in LEAST_MET}
    assert all(shares[count] >= least for count, least in LEAST_MET.items()), shares


LARGEST = {"queries": 20_000, "keys": 20_000, "kv_heads": 64, "group": 32, "batch": 256}
"""The largest value of each size, up to which a kernel's thresholds may lie."""


def drawn_thresholds(count: int, dice: random.Random) -> Callable[[Case], bool]:
    """Draw thresholds of some sizes of a call anywhere up to what is affordable."""
    while True:
        drawn = {name: drawn_length(1, most, dice) for name, most in LARGEST.items()}
        width = dice.choice((16, 32, 64, 80, 96, 128, 192, 256))
        case = Case(
            batch=drawn["batch"],
            heads=drawn["kv_heads"] * drawn["group"],
            kv_heads=drawn["kv_heads"],
            queries=drawn["queries"],
            keys=drawn["keys"],
            d_head=width,
            d_value=width,
            is_causal=dice.random() < 0.5,
            backward=dice.random() < 0.5,
        )
        if is_affordable(case, LAUNCH):
            break
    names = dice.sample(sorted(SIZES), count)
    least = {name: SIZES[name](case) for name in names if name != "is_causal"}

    def is_beyond(other: Case) -> bool:
        return (
            other.backward == case.backward
            and all(SIZES[name](other) >= size for name, size in least.items())
            and ("is_causal" not in names or other.is_causal == case.is_causal)
        )

    return is_beyond


LEAST_BEYOND = {2: 0.98, 3: 0.95, 4: 0.85, 5: 0.63}
"""Shares of the kernels wrong beyond some thresholds that a run meets, likewise."""


@pytest.mark.rotating(parts=4)
def test_a_run_meets_most_kernels_that_are_wrong_beyond_thresholds_up_to_what_is_affordable():
    cases = cases_of_a_run(0)
    shares = {}
    for count in LEAST_BEYOND:
        dice = random.Random(count)
        kernels = [drawn_thresholds(count, dice) for _ in range(KERNELS)]
        shares[count] = sum(any(map(kernel, cases)) for kernel in kernels) / KERNELS
    assert all(shares[count] >= least for count, least in LEAST_BEYOND.items()), shares


@pytest.mark.rotating(parts=4)
def test_a_part_of_the_calls_meets_fewer():
    cases = cases_of_a_run(0)
    assert share_met(cases[::8], 4) < share_met(cases, 4) - 0.1


def test_a_kernel_is_met_by_the_call_that_it_was_drawn_from():
    for seed in range(50):
        case, dice = drawn_call(random.Random(seed)), random.Random(seed)
        assert all(drawn_condition(name, case, dice)(case) for name in SIZES)
