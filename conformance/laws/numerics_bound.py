"""Laws of NUM: every result is within its bound, also on calls that no run has made before."""

import torch

from attnspec.conformance.compare import AXES, check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import check_oracle, plain
from attnspec.conformance.laws.gradients_sides import (
    gradients_of,
    incoming,
    judged_gradients,
    kind_of,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Feature, Layout, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, F64, F16, BF16)
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=4, kv_heads=4, queries=17, keys=33, d_head=16, d_value=16, dtype=F32)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
EMPTY_ROWS = Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)
LENGTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 129)
OPTIONS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI, Feature.LSE)
MESSAGE = "further from the definition than rounding can take it"


@law(
    "NUM-3",
    "NUM-2",
    "NUM-11",
    "NUM-12",
    "NUM-13",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        *every(SMALL, dtype=DTYPES),
        *every(SMALL, is_causal=(True,), mask=(EMPTY_ROWS, BIAS)),
        *every(SMALL.but(values=Values.PEAKED), dtype=(F32, BF16)),
    ),
    explore=cases(sometimes=OPTIONS, lengths=LENGTHS, layouts=tuple(Layout), only=plain),
    cost=2,
    fresh=True,
)
def law_every_output_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-3: the output of every call, also of those that no run has made before."""
    call = subject.draw(case, return_lse=False)
    check_oracle(call, subject.call(call), subject.expect(call), MESSAGE)


@law(
    "NUM-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(return_lse=True),
        *every(SMALL.but(return_lse=True), dtype=DTYPES),
        SMALL.but(return_lse=True, mask=EMPTY_ROWS),
    ),
    explore=cases(always=(Feature.LSE,), sometimes=OPTIONS, lengths=LENGTHS, only=plain),
    needs={Feature.LSE},
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
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(softcap=1.0),
        *every(SMALL.but(softcap=2.0), dtype=DTYPES),
        SMALL.but(softcap=0.5, values=Values.PEAKED),
    ),
    explore=cases(always=(Feature.SOFTCAP,), lengths=LENGTHS, only=plain),
    needs={Feature.SOFTCAP},
    cost=2,
)
def law_a_capped_score_errs_no_more_than_its_bound(subject: Subject, case: Case) -> None:
    """NUM-5: the output of every call with a softcap."""
    law_every_output_is_within_its_bound(subject, case)


@law(
    "NUM-6",
    judges=Judged.ATTENTION,
    pinned=(
        SMALL.but(mask=BIAS, queries=2, keys=3),
        *every(SMALL.but(mask=BIAS), dtype=DTYPES),
        *every(SMALL.but(alibi=True, values=Values.ONE_HOT), dtype=DTYPES, mask=(BIAS,)),
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
def law_a_biased_score_errs_no_more_than_its_bound(subject: Subject, case: Case) -> None:
    """NUM-6: the output of every call with a float mask, or slopes where they are claimed."""
    law_every_output_is_within_its_bound(subject, case)


@law(
    "NUM-7",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(sinks=True),
        *every(SMALL.but(sinks=True), dtype=DTYPES),
        SMALL.but(sinks=True, mask=EMPTY_ROWS),
    ),
    explore=cases(always=(Feature.SINKS,), lengths=LENGTHS, only=plain),
    needs={Feature.SINKS},
    cost=2,
)
def law_a_sink_errs_no_more_than_its_bound(subject: Subject, case: Case) -> None:
    """NUM-7: the output of every call with sinks."""
    law_every_output_is_within_its_bound(subject, case)


@law(
    "NUM-8",
    "NUM-9",
    "NUM-10",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(backward=True),
        *every(SMALL.but(backward=True, values=Values.PEAKED), dtype=DTYPES),
        SMALL.but(backward=True, mask=BIAS),
        SMALL.but(backward=True, kv_heads=2),
    ),
    explore=cases(always=(Feature.BACKWARD,), sometimes=OPTIONS[:4], lengths=LENGTHS, only=plain),
    needs={Feature.BACKWARD},
    cost=6,
    fresh=True,
)
def law_every_gradient_is_within_its_bound(subject: Subject, case: Case) -> None:
    """NUM-8: every gradient of every call, also of those that no run has made before."""
    call = subject.draw(case)
    grad = incoming(case, kind_of(case))
    judged_gradients(subject, call, grad, gradients_of(subject, case), MESSAGE)
