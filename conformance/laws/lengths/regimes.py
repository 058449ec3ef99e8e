"""The law of LEN that calls every two regimes of calls with lengths together."""

from dataclasses import replace

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.part import Part
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.laws.helpers.cases import BF16, BIAS, F16, F32, F64, HIDDEN
from attnspec.conformance.laws.helpers.gradients import (
    check_zero,
    empty_rows_are_zero,
    incoming_gradient,
)
from attnspec.conformance.laws.helpers.lengths import has_keys, lengths_of
from attnspec.conformance.laws.helpers.regimes_of_lengths import (
    AXES,
    BACKWARD,
    NUMBERS,
    call_of,
    design,
    first_judged,
)
from attnspec.conformance.laws.helpers.sample import Sample
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.regimes import note_call, note_design
from attnspec.spec import CallMode, Case, KeyLengths

ROWS = 8
"""Queries of each head that are judged."""

FEWEST = 2
"""Batch elements that are judged at least, since a mistake may take one for another."""

ROTATIONS = 5
"""Values inside each class of calls that effort thorough tries."""


def cases_of_design(subject: Subject, seed: int) -> tuple[Case, ...]:
    """Return the cases of a subject's design, and note what they are to cover."""
    chosen = design(subject, seed)
    note_design(chosen)
    return chosen.cases


def further_cases(subject: Subject, seed: int) -> tuple[Case, ...]:
    """Return cases of the same design with other values inside the classes."""
    chosen = (design(subject, seed + step) for step in range(1, ROTATIONS))
    return tuple(dict.fromkeys(case for each in chosen for case in each.cases))


DECODING = Case(
    batch=5, heads=8, kv_heads=1, queries=1, keys=1025, d_head=64, d_value=64, dtype=F32,
    key_lengths=KeyLengths.RAGGED,
)  # fmt: skip
CHUNKS = DECODING.but(heads=6, kv_heads=2, queries=5, query_offset=True, is_causal=True)
OPTIONS = DECODING.but(heads=12, kv_heads=2, queries=3, keys=64, d_head=80, d_value=80)


@law(
    "LEN-10",
    pinned=(
        DECODING.but(batch=1, heads=7, keys=128, d_head=96, d_value=96, dtype=BF16, seed=1),
        DECODING.but(
            batch=17, heads=2, kv_heads=2, keys=65, dtype=F64, key_lengths=KeyLengths.EMPTY
        ),
        DECODING,
        DECODING.but(heads=4, keys=256, d_head=256, d_value=256, mode=CallMode.NO_GRAD),
        DECODING.but(heads=16, queries=17, keys=32, window=(17, None), d_head=33, d_value=33),
        CHUNKS,
        CHUNKS.but(batch=2, heads=5, kv_heads=1, queries=100, keys=129, dtype=F16),
        DECODING.but(heads=2, queries=33, keys=257, d_head=128, d_value=128, backward=True),
        DECODING.but(batch=3, heads=2, queries=3, backward=True),
        OPTIONS.but(mask=HIDDEN, return_lse=True),
        OPTIONS.but(heads=9, kv_heads=1, mask=BIAS, softcap=30.0),
        OPTIONS.but(alibi=True, sinks=True, window=(5, 3)),
    ),
    wide=cases_of_design,
    large=further_cases,
    fresh=True,
)
def law_lengths_in_every_two_regimes_equal_the_definition(subject: Subject, case: Case) -> None:
    """LEN-10: in any two regimes of calls with lengths, result and gradients are within bounds."""
    call = subject.draw(case)
    sample = _sample(subject, case, call)
    expected = sample.check_call(subject)
    if case.backward:
        grad = sample.incoming(incoming_gradient(case))
        _, gradients = subject.differentiate(call, grad)
        sample.check_gradients(subject, gradients, grad)
        for name in ("key", "value"):
            gradient = gradients[name]
            assert gradient is not None
            beyond = (~has_keys(call)).expand(gradient.shape)
            check_zero(gradient, name, beyond, "a key beyond the length has a gradient")
    lengths = tuple(lengths_of(sample.few).tolist())
    made = call_of(call.query, call.key, call.value, **call.keywords())
    assert made is not None
    mode = BACKWARD if case.backward else case.mode
    judged = replace(made, lengths=lengths, mode=mode)
    note_call(judged, expected.out, expected.bound, AXES)


def _sample(subject: Subject, case: Case, call: Call) -> Sample:
    """Return the sample of a case: a batch element of each length, and some rows of one group.

    Of long calls, fewer batch elements: the one that is judged in any sample, and others.
    """
    dice = generator(case.seed, "part")
    order = [first_judged(case), *torch.randperm(case.batch, generator=dice).tolist()]
    lengths = lengths_of(call).tolist()
    elements = [b for n, b in enumerate(order) if lengths[b] not in {lengths[c] for c in order[:n]}]
    of_group = case.heads // case.kv_heads * case.keys * (case.d_head + case.d_value)
    batch = torch.tensor(elements[: max(FEWEST, NUMBERS // of_group)])
    kv_head = torch.randint(case.kv_heads, (1,), generator=dice)
    part = Part.of(call, batch, kv_head, subject.implementation.profile.grouping)
    rows = torch.arange(case.queries)
    if case.queries > ROWS and not (case.backward and not empty_rows_are_zero(subject)):
        between_ends = torch.randperm(case.queries - 2, generator=dice)[: ROWS - 2] + 1
        rows = torch.cat([rows[:1], between_ends.sort().values, rows[-1:]])
    return Sample(call=call, part=part, few=part.call(call), rows=rows)
