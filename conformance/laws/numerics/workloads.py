"""The laws of NUM at the sizes at which models run, judged by a sample of each call."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice

from attnspec.conformance.attention.launches import quick_types, work_of
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.attention.workloads import (
    PHASES,
    Phase,
    Turns,
    claimed_form,
    with_type_of_mask,
    workloads,
)
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32
from attnspec.conformance.laws.helpers.gradients import (
    empty_rows_are_zero,
    operands_with_gradient,
)
from attnspec.conformance.laws.helpers.mask_dtype import may_refuse_mask_dtype
from attnspec.conformance.laws.helpers.sample import Limits, Sample
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Layout, Layouts, Values

DRAWS = 8
"""Draws of a workload, of which the first that is claimed is taken."""

SLOW_WORK = 3e9
"""Work of a call, as that of launches, from which on slow types are rare if others are claimed."""

SLOW_TURNS = 4
"""Turns of a slow type, in one of which a call of more work has it."""

LARGEST_SLOW_WORK = 8e9
"""Work of a call from which on it never has a slow type if others are claimed."""

SAMPLE = Limits(numbers=2_000_000, scores=2**16, rows=64)
SAMPLE_WITH_GRADIENTS = Limits(numbers=1, scores=2**16, rows=10**6)
"""One batch element and key/value head, with as many rows as the scores allow."""

ROUNDS = 4
"""Times that effort thorough draws each workload."""

KINDS = ("normal", "small", "normal", "large", "spiked")
"""Kinds of the incoming gradient in turn: a large one is that of a scaled loss."""

FROZEN = ((), ("key",), (), ("key", "value"), (), ("query",), ("query", "key"))
"""Operands that need no gradient, in turn: projections without an adapter, a frozen encoder,
trained prefixes alone, or values alone."""

INSIDE = Layouts(query=Layout.HEADS_INSIDE, key=Layout.HEADS_INSIDE, value=Layout.HEADS_INSIDE)
LLAMA = Case(
    heads=8,
    kv_heads=2,
    queries=257,
    keys=257,
    d_head=128,
    d_value=128,
    dtype=BF16,
    is_causal=True,
    layouts=INSIDE,
)
CACHES = (
    Layouts(key=Layout.CACHE, value=Layout.CACHE),
    Layouts(key=Layout.CACHE_INSIDE, value=Layout.CACHE_INSIDE),
)
OF_A_DEVICE = LLAMA.but(heads=4, kv_heads=1, d_head=64, d_value=64)
LONG_PROMPTS = LLAMA.but(batch=2, heads=4, kv_heads=1, queries=769, keys=769, values=Values.NEEDLES)
PLAIN = LLAMA.but(heads=4, kv_heads=4, is_causal=False, dtype=F32)
DECODING = LLAMA.but(is_causal=False, queries=1, keys=1031, batch=4, dtype=F16)
GPT2 = PLAIN.but(heads=12, kv_heads=12, d_head=64, d_value=64, is_causal=True)


def cases_of_workloads(
    subject: Subject, seed: int, *, backward: bool, rounds: range = range(1)
) -> tuple[Case, ...]:
    """Return a claimed case of each workload, or one of each phase if each shape is compiled.

    There are none for a subject that the scalar definition judges.
    """
    if subject.refuses(PLAIN.but(backward=backward)) == "too large for the scalar definition":
        return ()
    few = 1 if subject.implementation.compiles_each_shape else None
    turns = Turns(random.Random(seed))
    return tuple(
        case
        for number in rounds
        for phase in PHASES
        if phase.backward is backward
        for case in islice(_cases_of(subject, phase, turns, seed, number), few)
    )


def _cases_of(
    subject: Subject, phase: Phase, turns: Turns, seed: int, number: int
) -> Iterator[Case]:
    """Yield claimed cases of a phase, in each storage type by turns, slow ones in fewer calls."""
    dice = random.Random(f"{seed}/{number}/{phase.name}")
    dtypes = dice.sample(subject.implementation.dtypes, len(subject.implementation.dtypes))
    quick = quick_types(dtypes, subject.device)
    claimed = subject.implementation.features
    draws = workloads(phase, claimed, dice, turns, aligned=subject.is_aligned)
    for turn, draw in enumerate(draws):
        for _ in range(DRAWS):
            case = draw(dtypes[turn % len(dtypes)])
            if case is None:
                continue
            case = case.but(device=subject.device)
            least = SLOW_WORK if turn // len(dtypes) % SLOW_TURNS else LARGEST_SLOW_WORK
            if quick and work_of(case) > least:
                case = case.but(dtype=quick[turn % len(quick)])
            case = with_type_of_mask(case, turns)
            chosen = claimed_form(case, subject.refuses)
            if chosen is not None:
                yield chosen
                break


@law(
    "NUM-19",
    pinned=(
        PLAIN,
        GPT2,
        LLAMA,
        LLAMA.but(is_causal=False, queries=1, keys=1031, batch=4, dtype=F16),
        # requests whose keys lie in a cache with room for more
        *(
            OF_A_DEVICE.but(
                batch=8, heads=8, kv_heads=2, queries=1, keys=1100, is_causal=False, layouts=cache
            )
            for cache in CACHES
        ),
        # a key that weighs as much as 23 000 others
        OF_A_DEVICE.but(is_causal=False, queries=1, keys=23_000, dtype=F16, values=Values.PLATEAU),
        OF_A_DEVICE.but(batch=17, queries=66, keys=66),
        # over 4096 tiles of 64 queries
        OF_A_DEVICE.but(batch=50, heads=56, kv_heads=8, queries=65, keys=65),
        # several prompts, each longer than two tiles of 256
        LONG_PROMPTS,
    ),
    wide=partial(cases_of_workloads, backward=False),
    large=partial(cases_of_workloads, backward=False, rounds=range(1, ROUNDS)),
    fresh=True,
)
def law_calls_of_models_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-19: at the sizes at which models run, output and log-sum-exp are within their bounds."""
    call = subject.draw(case)
    sample = Sample.of(subject, case, call, SAMPLE)
    with may_refuse_mask_dtype(case):
        sample.check_call(subject)


@law(
    "NUM-19",
    pinned=(
        PLAIN.but(backward=True),
        LLAMA.but(backward=True),
        LLAMA.but(backward=True, seed=FROZEN.index(("key",))),
        OF_A_DEVICE.but(heads=1, queries=2049, keys=2049, backward=True),
        LONG_PROMPTS.but(queries=577, keys=577, backward=True),
    ),
    wide=partial(cases_of_workloads, backward=True),
    large=partial(cases_of_workloads, backward=True, rounds=range(1, ROUNDS)),
    fresh=True,
)
def law_gradients_in_training_of_models_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-19: at the sizes at which models are trained, gradients are within their bounds.

    A gradient comes into some heads alone, so that the gradients of others are zero. Some operands
    need none, as in a model that is trained in part.
    """
    call = subject.draw(case)
    sample = Sample.of(subject, case, call, SAMPLE_WITH_GRADIENTS)
    kind = KINDS[case.seed % len(KINDS)]
    grad = sample.draw_incoming_alone(case, kind)
    wrt = operands_with_gradient(subject, case) if empty_rows_are_zero(subject) else WRT
    frozen = FROZEN[case.seed % len(FROZEN)]
    wrt = tuple(name for name in wrt if name not in frozen)
    with may_refuse_mask_dtype(case):
        out, gradients = subject.differentiate(call, grad, wrt=wrt)
    sample.check_output(subject, out)
    sample.check_gradients(subject, gradients, grad)
