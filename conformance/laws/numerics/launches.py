"""The laws of NUM on calls as large as is affordable, judged by a sample of each."""

import itertools
import random
from collections.abc import Iterator
from functools import partial
from itertools import islice

from attnspec.conformance.attention.frontier import frontier_calls
from attnspec.conformance.attention.given_sizes import calls_at
from attnspec.conformance.attention.launches import KINDS, WORK, Kind, launches
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.workloads import Turns, claimed_form, forms_of
from attnspec.conformance.comparison import tally
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32
from attnspec.conformance.laws.helpers.large_calls import (
    KINDS_OF_GRADIENT,
    LAYOUTS,
    check_call,
    check_gradients,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import CallMode, Case, Values

CALLS, THOROUGH_CALLS = 110, 250
"""Calls of drawn sizes in a run, forward and again backward."""

SHARE, LARGER_SHARE = 0.35, 4
"""Their work, in that of launches."""

NEEDLES = Case(
    heads=8,
    kv_heads=2,
    queries=640,
    keys=640,
    d_head=64,
    d_value=64,
    dtype=F32,
    is_causal=True,
    values=Values.NEEDLES,
)
DECODING = NEEDLES.but(
    batch=16, heads=4, kv_heads=1, queries=1, keys=1201, is_causal=False, dtype=BF16
)
TRAINING = NEEDLES.but(heads=2, kv_heads=2, backward=True)


def cases_of_launches(
    subject: Subject, seed: int, *, backward: bool, is_thorough: bool = False
) -> tuple[Case, ...]:
    """Return the claimed launches and others, or one of each kind if each shape is compiled.

    A subject that the scalar definition judges has none. A thorough run has larger ones, beside
    those of a standard run.
    """
    if subject.refuses(NEEDLES.but(backward=backward)) == "too large for the scalar definition":
        return ()
    few = 1 if subject.implementation.compiles_each_shape else None
    sequences = [
        sequence[:few]
        for kind in KINDS
        if kind.backward is backward
        for sequence in islice(_sequences(subject, kind, seed, is_thorough), few)
    ]
    if few is None:
        sequences += [[case] for case in _frontier(subject, seed, backward, is_thorough)]
    if is_thorough:
        # a run that is short of time has met some of each kind
        random.Random(seed).shuffle(sequences)
    return tuple(case for sequence in sequences for case in sequence)


def cases_of_given_sizes(subject: Subject, *, backward: bool) -> tuple[Case, ...]:
    """Return calls at the sizes that a user gives, if any."""
    implementation = subject.implementation
    all_sizes = [each for each in subject.sizes if each.is_trained or not backward]
    count = tally.current()
    if count is not None:
        for sizes in all_sizes:
            tally.record_given(count, str(sizes), 0, backward=backward)
    calls = [
        calls_at(
            sizes,
            implementation.features,
            implementation.dtypes,
            subject.refuses,
            random.Random(f"{subject.seed}/{sizes}/{backward}"),
            backward=backward,
            device=subject.device,
            is_aligned=subject.is_aligned,
        )
        for sizes in all_sizes
    ]
    # a run that is short of time has met some of each
    by_turns = itertools.chain.from_iterable(itertools.zip_longest(*calls, fillvalue=[]))
    return tuple(case for together in by_turns for group in together for case in group)


def _frontier(subject: Subject, seed: int, backward: bool, is_thorough: bool) -> Iterator[Case]:
    """Yield calls of drawn sizes that are claimed, or that are so in another form."""
    implementation = subject.implementation
    calls = frontier_calls(
        implementation.features,
        implementation.dtypes,
        random.Random(f"{seed}/frontier/{backward}/{is_thorough}"),
        backward=backward,
        work=(LARGER_SHARE if is_thorough else SHARE) * WORK,
        device=subject.device,
        is_aligned=subject.is_aligned,
    )
    for case in islice(calls, THOROUGH_CALLS if is_thorough else CALLS):
        form = claimed_form(case, subject.refuses)
        if form is not None:
            yield form


def _sequences(subject: Subject, kind: Kind, seed: int, is_thorough: bool) -> Iterator[list[Case]]:
    """Yield the claimed launches of a kind, or contiguous ones, or those of the usual scale."""
    implementation = subject.implementation
    dice = random.Random(f"{seed}/{kind.name}/{is_thorough}")
    for sequence in launches(
        kind,
        implementation.features,
        implementation.dtypes,
        dice,
        Turns(dice),
        device=subject.device,
        is_aligned=subject.is_aligned,
        is_thorough=is_thorough,
    ):
        for form in zip(*map(forms_of, sequence), strict=True):
            claimed = [case for case in form if subject.refuses(case) is None]
            if claimed:
                yield claimed
                break


@law(
    "NUM-20",
    pinned=(
        NEEDLES,
        # one shape again, with other numbers
        *(DECODING.but(seed=seed) for seed in range(2)),
        DECODING.but(batch=2, heads=8, kv_heads=8, queries=4, keys=2500, d_head=32, d_value=32),
        NEEDLES.but(heads=2, kv_heads=1, mode=CallMode.OTHER_THREAD),
        NEEDLES.but(heads=2, kv_heads=1, values=Values.UNEVEN),
    ),
    design=partial(cases_of_given_sizes, backward=False),
    wide=partial(cases_of_launches, backward=False),
    large=partial(cases_of_launches, backward=False, is_thorough=True),
    fresh=True,
)
def law_the_largest_calls_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-20: in calls as large as is affordable, output and log-sum-exp are within bounds."""
    check_call(subject, case)


@law(
    "NUM-20",
    pinned=(
        *(TRAINING.but(seed=seed) for seed in range(2)),
        TRAINING.but(mode=CallMode.OTHER_THREAD),
        TRAINING.but(mode=CallMode.TWO_BACKWARDS),
        # an incoming gradient as of a sum, and as of a mean over tokens
        *(
            TRAINING.but(heads=1, kv_heads=1, seed=len(KINDS_OF_GRADIENT) * LAYOUTS.index(layout))
            for layout in ("one number per row", "one row for all queries")
        ),
        # longer than 1 024 and 2 048 tokens in the type that most launches leave out on a CPU
        TRAINING.but(
            heads=1, kv_heads=1, queries=2060, keys=2060, d_head=16, d_value=16, dtype=F16
        ),
    ),
    design=partial(cases_of_given_sizes, backward=True),
    wide=partial(cases_of_launches, backward=True),
    large=partial(cases_of_launches, backward=True, is_thorough=True),
    fresh=True,
)
def law_gradients_of_the_largest_calls_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-20: in calls as large as is affordable, gradients are within their bounds."""
    check_gradients(subject, case)
