"""Laws of NUM: every result is within its bound, also on calls that are new in each run."""

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import AXES, check_close
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    EMPTY_ROWS,
    F16,
    F32,
    LENGTHS,
    OPTIONS,
    TINIEST,
)
from attnspec.conformance.laws.helpers.gradients import (
    differentiate_and_judge,
    incoming_gradient,
    incoming_kind,
    operands_with_gradient,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Layout, MaskPattern, Values

SMALL = Case(batch=2, heads=4, kv_heads=4, queries=17, keys=33, d_head=16, d_value=16, dtype=F32)
MESSAGE = "the error exceeds the bound on rounding errors"


def _check_output(subject: Subject, case: Case) -> None:
    """Compare the output of a case, without its log-sum-exp, with the oracle."""
    call = subject.draw(case, return_lse=False)
    check_oracle(call, subject.call(call), subject.expect(call), MESSAGE)


@law(
    "NUM-3",
    "NUM-2",
    "NUM-11",
    "NUM-12",
    "NUM-13",
    pinned=(
        TINIEST,
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL, is_causal=(True,), mask=(EMPTY_ROWS, BIAS)),
        *vary(SMALL.but(values=Values.PEAKED), dtype=(F32, BF16)),
    ),
    explore=cases(
        sometimes=(*OPTIONS, Feature.LSE), lengths=LENGTHS, layouts=tuple(Layout), only=plain
    ),
    cost=2,
    fresh=True,
)
def law_every_output_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-3: the output of every call, also of those that no run has made before."""
    _check_output(subject, case)


LARGE = 384
"""A size of values of which 171 overflow in a sum in float16."""


@law(
    "NUM-11",
    pinned=(
        SMALL.but(dtype=F16, keys=300),
        SMALL.but(dtype=F16, batch=1, queries=1, keys=1031, d_head=64, d_value=64),
        SMALL.but(dtype=F16, batch=1, heads=1, kv_heads=1, keys=2100, is_causal=True),
        SMALL.but(dtype=BF16, keys=700),
    ),
)
def law_values_of_one_sign_overflow_no_sum(subject: Subject, case: Case) -> None:
    """NUM-11: the output is finite where its sums fit the accumulator, if not the storage type."""
    call = subject.draw(case)
    # equal weights, so that a sum before the division counts nearly every key
    call = call.but(query=call.query / 8, value=(call.value.abs() + LARGE).to(case.dtype))
    check_oracle(call, subject.call(call), subject.expect(call), MESSAGE)


@law(
    "NUM-4",
    pinned=(
        TINIEST.but(return_lse=True),
        *vary(SMALL.but(return_lse=True), dtype=DTYPES),
        SMALL.but(return_lse=True, mask=EMPTY_ROWS),
    ),
    explore=cases(
        always=(Feature.LSE,), sometimes=(*OPTIONS, Feature.LSE), lengths=LENGTHS, only=plain
    ),
    cost=2,
)
def law_every_log_sum_exp_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-4: the log-sum-exp of every call, with every option that is claimed."""
    call = subject.draw(case)
    expected = subject.expect(call)
    _, lse = subject.call_with_lse(call)
    check_close(
        lse,
        expected.lse,
        expected.lse_bound,
        what="lse",
        message=MESSAGE,
        may_be_nan=expected.lse_may_be_nan,
        axes=AXES[:3],
    )


@law(
    "NUM-5",
    pinned=(
        TINIEST.but(softcap=1.0),
        *vary(SMALL.but(softcap=2.0), dtype=DTYPES),
        SMALL.but(softcap=0.5, values=Values.PEAKED),
    ),
    explore=cases(always=(Feature.SOFTCAP,), lengths=LENGTHS, only=plain),
    cost=2,
)
def law_every_capped_score_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-5: the output of every call with a softcap."""
    _check_output(subject, case)


@law(
    "NUM-6",
    pinned=(
        SMALL.but(mask=BIAS, queries=2, keys=3),
        *vary(SMALL.but(mask=BIAS), dtype=DTYPES),
        *vary(SMALL.but(alibi=True, values=Values.ONE_HOT), dtype=DTYPES, mask=(BIAS,)),
    ),
    explore=cases(
        masked=True,
        patterns=(MaskPattern.BIAS,),
        sometimes=(Feature.ALIBI, Feature.SOFTCAP),
        lengths=LENGTHS,
        only=plain,
    ),
    needs={Feature.MASK},
    cost=2,
)
def law_every_biased_score_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-6: the output of every call with a float mask, or with slopes if they are claimed."""
    _check_output(subject, case)


@law(
    "NUM-7",
    pinned=(
        TINIEST.but(sinks=True),
        *vary(SMALL.but(sinks=True), dtype=DTYPES),
        SMALL.but(sinks=True, mask=EMPTY_ROWS),
    ),
    explore=cases(always=(Feature.SINKS,), lengths=LENGTHS, only=plain),
    cost=2,
)
def law_every_sink_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-7: the output of every call with sinks."""
    _check_output(subject, case)


@law(
    "NUM-8",
    "NUM-9",
    "NUM-10",
    pinned=(
        TINIEST.but(backward=True),
        *vary(SMALL.but(backward=True, values=Values.PEAKED), dtype=DTYPES),
        SMALL.but(backward=True, mask=BIAS),
        SMALL.but(backward=True, kv_heads=2),
    ),
    explore=cases(always=(Feature.BACKWARD,), sometimes=OPTIONS, lengths=LENGTHS, only=plain),
    cost=6,
    fresh=True,
)
def law_every_gradient_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-8: every gradient of every call, also of those that no run has made before."""
    call = subject.draw(case)
    grad = incoming_gradient(case, incoming_kind(case))
    differentiate_and_judge(subject, call, grad, operands_with_gradient(subject, case), MESSAGE)
