"""The laws of NUM on calls as large as is affordable, judged by a sample of each."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import torch
from jaxtyping import Int

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.launches import KINDS, Kind, launches
from attnspec.conformance.attention.layouts import lay_out
from attnspec.conformance.attention.part import Part
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.attention.workloads import Turns
from attnspec.conformance.laws.helpers.cases import BF16, F32
from attnspec.conformance.laws.helpers.gradients import empty_rows_are_zero, incoming_gradient
from attnspec.conformance.laws.helpers.mask_dtype import may_refuse_mask_dtype
from attnspec.conformance.laws.helpers.sample import Limits, Sample, may_have_empty_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, CausalAlignment, Layout, Layouts, Values

SAMPLE = Limits(numbers=2_000_000, scores=2**18, rows=1)
"""The batch elements and heads by which a call is judged; its rows are those of `_rows`."""

SAMPLE_WITH_GRADIENTS = Limits(numbers=1, scores=2**18, rows=1)
"""Likewise of a backward pass: one batch element and key/value head."""

TILE = 64
"""Half of the rows lie at the beginning or the end of a tile of this length."""

ROUNDS = 4
"""Times that effort thorough draws each launch."""

KINDS_OF_GRADIENT = ("normal", "spiked", "small", "normal", "large")
"""Kinds of the incoming gradient in turn."""

LAYOUTS = (Layout.HEADS_INSIDE, Layout.CONTIGUOUS, Layout.HEADS_INSIDE, Layout.LENGTH_FIRST)
"""Layouts of the incoming gradient in turn: a model that joins its heads sends it heads inside."""

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
    subject: Subject, seed: int, *, backward: bool, rounds: Iterable[int] = range(1)
) -> tuple[Case, ...]:
    """Return the claimed launches, or one call of each kind if each shape is compiled.

    There are none for a subject that the scalar definition judges.
    """
    if subject.refuses(NEEDLES.but(backward=backward)) == "too large for the scalar definition":
        return ()
    few = 1 if subject.implementation.compiles_each_shape else None
    return tuple(
        case
        for number in rounds
        for kind in KINDS
        if kind.backward is backward
        for sequence in islice(_sequences(subject, kind, seed + number), few)
        for case in sequence[:few]
    )


def _sequences(subject: Subject, kind: Kind, seed: int) -> Iterator[list[Case]]:
    """Yield the claimed launches of a kind, in their layouts or contiguous."""
    implementation = subject.implementation
    dice = random.Random(f"{seed}/{kind.name}")
    for sequence in launches(
        kind,
        implementation.features,
        implementation.dtypes,
        dice,
        Turns(dice),
        device=subject.device,
        is_aligned=implementation.profile.causal_alignment is CausalAlignment.LOWER_RIGHT,
    ):
        for form in (sequence, [case.but(layouts=Layouts()) for case in sequence]):
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
    ),
    wide=partial(cases_of_launches, backward=False),
    large=partial(cases_of_launches, backward=False, rounds=range(1, ROUNDS)),
    fresh=True,
)
def law_the_largest_calls_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-20: in calls as large as is affordable, output and log-sum-exp are within bounds."""
    call = subject.draw(case)
    with may_refuse_mask_dtype(case):
        _sample(subject, case, call, SAMPLE).check_call(subject)


@law(
    "NUM-20",
    pinned=tuple(TRAINING.but(seed=seed) for seed in range(2)),
    wide=partial(cases_of_launches, backward=True),
    large=partial(cases_of_launches, backward=True, rounds=range(1, ROUNDS)),
    fresh=True,
)
def law_gradients_of_the_largest_calls_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-20: in calls as large as is affordable, gradients are within their bounds."""
    call = subject.draw(case)
    sample = _sample(subject, case, call, SAMPLE_WITH_GRADIENTS)
    turn, layout = divmod(case.seed, len(LAYOUTS))
    kind = KINDS_OF_GRADIENT[turn % len(KINDS_OF_GRADIENT)]
    grad = lay_out(sample.incoming_alone(incoming_gradient(case, kind)), LAYOUTS[layout])
    with may_refuse_mask_dtype(case):
        out, gradients = subject.differentiate(call, grad)
    sample.check_output(subject, out)
    sample.check_gradients(subject, gradients, grad)


def _sample(subject: Subject, case: Case, call: Call, limits: Limits) -> Sample:
    """Return the sample of a call, whose rows lie beside multiples of a tile by half.

    All rows of a backward pass are judged where the gradient of an empty row may be NaN, if a mask
    or a window may make one.
    """
    sample = Sample.of(subject, case, call, limits)
    if case.backward and case.seed // 2 % 2:
        # the last element and head, where a list of work ends, in every second call
        batch, kv_heads = torch.tensor([case.batch - 1]), torch.tensor([case.kv_heads - 1])
        part = Part.of(call, batch, kv_heads, subject.implementation.profile.grouping)
        sample = replace(sample, part=part, few=part.call(call))
    if case.backward and may_have_empty_rows(case) and not empty_rows_are_zero(subject):
        return sample
    heads = sample.few.query.shape[:2].numel()
    count = max(4, limits.scores // max(1, heads * case.keys))
    return replace(sample, rows=_rows(case, count))


def _rows(case: Case, count: int) -> Int[torch.Tensor, " rows"]:
    """Return some rows, ascending: the ends, some at an end of a tile, and others."""
    every = torch.arange(case.queries)
    if count >= case.queries:
        return every
    dice = generator(case.seed, "rows")
    at_an_end = every[(every + 1) % TILE <= 1]
    drawn = [each[torch.randperm(len(each), generator=dice)] for each in (at_an_end, every)]
    ends = torch.tensor([0, case.queries - 1])
    rows: torch.Tensor = torch.cat([ends, *(each[: count // 2] for each in drawn)]).unique()
    return rows
