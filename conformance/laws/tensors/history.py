"""Laws of TEN: a call does not depend on how many calls were made before it."""

from itertools import cycle, islice

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.cases import BF16, F16, F32, TINIEST
from attnspec.conformance.laws.helpers.gradients import check_gradients, incoming_gradient
from attnspec.conformance.laws.law import law
from attnspec.spec import Case

CALLS = 300
"""Calls of one shape: more than eight bits count, and than a model of a hundred layers makes."""

INPUTS = 3
"""Different inputs of these calls, in turn."""

STEPS = 270
"""Steps of decoding: more lengths than a table of 256 holds."""

JUDGED = 3
"""Every third step is judged: a mistake that begins at some step is in the next ones as well."""

DECODING = Case(heads=4, kv_heads=2, queries=1, keys=66, d_head=16, d_value=16, dtype=F32)


@law(
    "TEN-5",
    pinned=(
        TINIEST,
        DECODING,
        TINIEST.but(queries=5, keys=5, dtype=F16, backward=True),
    ),
    wide=(DECODING.but(kv_heads=4, queries=17, keys=17, is_causal=True, dtype=BF16),),
    cost=CALLS,
)
def law_many_calls_of_one_shape_are_right(subject: Subject, case: Case) -> None:
    """TEN-5: hundreds of calls of one shape, as of the layers of many steps, are all right."""
    seeds = range(case.seed, case.seed + INPUTS)
    calls = [subject.draw(case, seed=seed) for seed in seeds]
    expected = [subject.expect(call) for call in calls]
    grad = incoming_gradient(case)
    of_gradients = [subject.expect_gradients(call, grad) for call in calls if case.backward]
    for number, turn in enumerate(islice(cycle(range(INPUTS)), CALLS)):
        call, after = calls[turn], f"after {number} calls of this shape"
        if case.backward:
            out, gradients = subject.differentiate(call, grad)
            message = f"the gradient is wrong {after}"
            check_gradients(call, gradients, of_gradients[turn], message)
        else:
            out = subject.call(call)
        check_oracle(call, out, expected[turn], f"the output is wrong {after}")


@law(
    "TEN-5",
    pinned=(DECODING.but(keys=STEPS, kv_heads=4),),
    wide=(DECODING.but(keys=STEPS, d_head=64, d_value=64, dtype=BF16),),
    cost=STEPS,
)
def law_each_step_of_decoding_reads_one_key_more(subject: Subject, case: Case) -> None:
    """TEN-5: in hundreds of steps, each on one key more than the last, no output is wrong."""
    if subject.implementation.compiles_each_shape:
        raise NotClaimed("it compiles for each shape")
    call = subject.draw(case)
    for keys in range(1, case.keys + 1):
        step = call.but(key=call.key[:, :, :keys], value=call.value[:, :, :keys])
        out = subject.call(step)
        if keys % JUDGED == 0:
            message = f"the output is wrong on {keys} keys, after a step on each smaller number"
            check_oracle(step, out, subject.expect(step), message)
