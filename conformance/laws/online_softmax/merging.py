"""Laws of ONL on merges: the definition, order, grouping, empty parts and memory."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.explained import explained_by
from attnspec.conformance.operators.online_softmax.bounds import Bounds, merge_bounds
from attnspec.conformance.operators.online_softmax.case import (
    LAYOUTS,
    Parts,
    SoftmaxMergeCase,
    merge_cases,
)
from attnspec.conformance.operators.online_softmax.subject import (
    OF_MERGE,
    Result,
    SoftmaxMergeSubject,
)

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F64, F32, F16, BF16)
FINITE = (Parts.NORMAL, Parts.EQUAL, Parts.FAR)
PINNED = (
    SoftmaxMergeCase(rows=(1,), d_value=1),
    SoftmaxMergeCase(),
    *(SoftmaxMergeCase(rows=(2, 3), d_value=5, dtype=dtype, seed=1) for dtype in DTYPES),
    *(
        SoftmaxMergeCase(rows=(3,), parts=each, dtype=dtype, seed=2)
        for each in FINITE
        for dtype in (F64, F32)
    ),
    SoftmaxMergeCase(rows=(2, 3, 5), d_value=64, dtype=F32, seed=3),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _finite(subject: SoftmaxMergeSubject) -> st.SearchStrategy[SoftmaxMergeCase]:
    return st.sampled_from(FINITE).flatmap(lambda each: merge_cases(subject, parts=each))


def _check_alike(got: Result, other: Result, bound: Bounds, message: str) -> None:
    for name, one, two in zip(("out", "lse"), got, other, strict=True):
        check_close(
            one.double(),
            two.double(),
            getattr(bound, name),
            what=name,
            message=message,
            axes=OF_MERGE if name == "out" else OF_MERGE[:-1],
        )


@law("ONL-15", pinned=PINNED, explore=_finite)
def law_merged_parts_equal_the_whole(subject: SoftmaxMergeSubject, case: SoftmaxMergeCase) -> None:
    """ONL-15: each part counts by its share of the sum of exponentials of both."""
    subject.judge_case(case, "two parts are not merged into the whole")


@law("ONL-16", pinned=WIDE, explore=_finite, cost=2.0)
def law_merged_parts_may_change_places(
    subject: SoftmaxMergeSubject, case: SoftmaxMergeCase
) -> None:
    """ONL-16: the parts in the other order give the same results."""
    a, b = case.draw(subject.profile.base)
    bound = subject.expect(a, b).bounds
    with explained_by(subject, subject.cause, (a, b), (b, a)):
        _check_alike(
            subject.call(b, a),
            subject.call(a, b),
            bound.plus(bound),
            "the second part before the first gives another result",
        )


@law("ONL-17", pinned=WIDE, explore=_finite, cost=4.0)
def law_parts_merge_in_any_grouping(subject: SoftmaxMergeSubject, case: SoftmaxMergeCase) -> None:
    """ONL-17: of three parts, the first two may be merged first, or the last two."""
    a, b, c = case.draw(subject.profile.base, 3)
    base = subject.profile.base
    first, last = subject.call(a, b), subject.call(b, c)
    left, right = subject.call(first, c), subject.call(a, last)
    bound = _of_two(subject, a, b, first, c).plus(_of_two(subject, b, c, last, a))
    bound = bound.plus(merge_bounds(*first, *c, base)).plus(merge_bounds(*a, *last, base))
    with explained_by(subject, subject.cause, (a, b), (b, c), (first, c), (a, last)):
        _check_alike(left, right, bound, "the grouping of three parts changes the result")


def _of_two(
    subject: SoftmaxMergeSubject, a: Result, b: Result, merged: Result, third: Result
) -> Bounds:
    """Return what the error of a first merge can change in a second one.

    A log-sum-exp that errs by e moves at most e of the weight from one part to the other, to first
    order; 2 e covers the second order, since e is far below one half.
    """
    bound = subject.expect(a, b).bounds
    moved = 2 * bound.lse * subject.profile.base.unit
    larger = merged[0].double().abs() + third[0].double().abs()
    return Bounds(out=bound.out + moved[..., None] * larger, lse=2 * bound.lse)


@law(
    "ONL-18",
    pinned=tuple(
        SoftmaxMergeCase(rows=rows, parts=Parts.ONE_EMPTY, dtype=dtype, seed=1)
        for rows in ((2,), (2, 3))
        for dtype in DTYPES
    ),
    explore=lambda subject: merge_cases(subject, parts=Parts.ONE_EMPTY),
)
def law_an_empty_part_changes_nothing(subject: SoftmaxMergeSubject, case: SoftmaxMergeCase) -> None:
    """ONL-18: a part whose log-sum-exp is minus infinity leaves the other as it is."""
    subject.judge_case(case, "a part without keys changes the other")


@law(
    "ONL-19",
    pinned=tuple(
        SoftmaxMergeCase(rows=rows, parts=Parts.BOTH_EMPTY, dtype=dtype, seed=1)
        for rows in ((1,), (2, 3))
        for dtype in DTYPES
    ),
    explore=lambda subject: merge_cases(subject, parts=Parts.BOTH_EMPTY),
)
def law_two_empty_parts_merge_into_an_empty_one(
    subject: SoftmaxMergeSubject, case: SoftmaxMergeCase
) -> None:
    """ONL-19: two parts without keys give zeros and minus infinity."""
    subject.judge_case(case, "two parts without keys do not give zeros and -inf")


@law(
    "ONL-20",
    pinned=tuple(
        SoftmaxMergeCase(rows=(3,), parts=each, dtype=dtype, seed=1)
        for each in (Parts.LARGE, Parts.NEGATIVE)
        for dtype in DTYPES
    ),
    explore=lambda subject: st.sampled_from((Parts.LARGE, Parts.NEGATIVE)).flatmap(
        lambda each: merge_cases(subject, parts=each)
    ),
)
def law_large_log_sum_exps_neither_overflow_nor_vanish(
    subject: SoftmaxMergeSubject, case: SoftmaxMergeCase
) -> None:
    """ONL-20: log-sum-exps far from zero give the results of the definition."""
    around = "1000" if case.parts is Parts.LARGE else "-60000"
    subject.judge_case(case, f"log-sum-exps around {around} overflow or vanish")


@law(
    "ONL-21",
    pinned=tuple(
        SoftmaxMergeCase(rows=(2, 3), d_value=4, layout=layout, dtype=dtype, seed=1)
        for layout in LAYOUTS
        for dtype in (F64, F32)
    ),
    explore=merge_cases,
)
def law_parts_are_read_by_their_strides_and_stay_as_they_are(
    subject: SoftmaxMergeSubject, case: SoftmaxMergeCase
) -> None:
    """ONL-21: outputs in any strides are read, and no operand is written to."""
    parts = case.draw(subject.profile.base)
    before = [(out.clone(), lse.clone()) for out, lse in parts]
    subject.judge(parts[0], parts[1], f"outputs that lie {case.layout} are read wrongly")
    for name, now, then in zip("ab", parts, before, strict=True):
        for word, one, two in zip(("out", "lse"), now, then, strict=True):
            if not torch.equal(one, two):
                raise Explained(f"{word}_{name} is written to")
