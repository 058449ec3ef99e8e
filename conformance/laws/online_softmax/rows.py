"""Laws of ONL on one call: the definition, tiles, hidden scores, rows, memory and gradients."""

from collections.abc import Callable

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.explained import explained_by
from attnspec.conformance.operators.online_softmax.case import (
    LAYOUTS,
    OnlineSoftmaxCase,
    Scores,
    cases,
)
from attnspec.conformance.operators.online_softmax.subject import (
    AXES,
    OnlineSoftmaxSubject,
    check_both,
)

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F64, F32, F16, BF16)
BESIDE_TILES = (1, 2, 3, 5, 15, 16, 17, 31, 33, 63, 65, 127, 129, 257)
PINNED = (
    OnlineSoftmaxCase(queries=1, keys=1, d_value=1),
    OnlineSoftmaxCase(),
    OnlineSoftmaxCase(queries=3, keys=5, d_value=2, seed=1),
    *(OnlineSoftmaxCase(queries=3, keys=33, dtype=dtype, seed=2) for dtype in DTYPES),
    *(OnlineSoftmaxCase(queries=4, keys=33, scores=each, seed=3) for each in Scores),
    *(OnlineSoftmaxCase(queries=4, keys=65, scores=each, dtype=F32, seed=4) for each in Scores),
    OnlineSoftmaxCase(queries=2, keys=300, d_value=8, scores=Scores.GROWING, seed=5),
)
WIDE = tuple(case for case in PINNED if case.dtype.itemsize >= 4)


def _of(*contents: Scores) -> Callable[[OnlineSoftmaxSubject], st.SearchStrategy[object]]:
    """Return a source of cases with some contents of the scores."""
    return lambda subject: st.sampled_from(contents).flatmap(
        lambda each: cases(subject, scores=each)
    )


def _wide(subject: OnlineSoftmaxSubject) -> st.SearchStrategy[OnlineSoftmaxCase]:
    return cases(subject, dtype=subject.widest)


@law("ONL-1", pinned=PINNED, explore=cases)
def law_online_softmax_equals_the_definition(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-1: each row is the mean of the values, weighted by the exponentials of its scores."""
    scores, values = case.draw()
    message = "the output is not the mean of the values weighted by the softmax"
    subject.judge(scores, values, message, only="out")


@law("ONL-2", pinned=PINNED, explore=cases)
def law_the_log_sum_exp_of_a_row_equals_the_definition(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-2: the second result is the logarithm of the sum of exponentials, in the base."""
    scores, values = case.draw()
    message = f"the log-sum-exp, of base {subject.profile.base}, is wrong"
    subject.judge(scores, values, message, only="lse")


@law(
    "ONL-3",
    pinned=tuple(
        OnlineSoftmaxCase(queries=2, keys=keys, scores=each, dtype=dtype, seed=keys)
        for dtype in DTYPES
        for each in (Scores.LARGE, Scores.NEGATIVE)
        for keys in (2, 65)
    ),
    explore=_of(Scores.LARGE, Scores.NEGATIVE),
)
def law_large_scores_neither_overflow_nor_vanish(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-3: scores far from zero give the results of the definition, unless sums are kept."""
    subject.judge_case(case, f"scores around {_around(case)} overflow or vanish")


def _around(case: OnlineSoftmaxCase) -> str:
    return "1000" if case.scores is Scores.LARGE else "-60000"


@law("ONL-4", pinned=WIDE, explore=_wide, cost=2.0)
def law_a_constant_added_to_every_score_moves_the_log_sum_exp_alone(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-4: scores plus c give the same output, and the log-sum-exp plus c in its base."""
    scores, values = case.draw()
    # a constant that no score rounds, for scores that are multiples of 1/64
    scores = (scores * 64).round() / 64
    for constant in (-8.0, 32.0):
        moved = scores + constant
        if not torch.equal(moved - constant, scores):
            continue
        before, after = subject.expect(scores, values), subject.expect(moved, values)
        first, second = subject.call(scores, values), subject.call(moved, values)
        message = f"scores plus {constant:g} change more than the log-sum-exp by {constant:g}"
        with explained_by(subject, subject.cause, (scores, values), (moved, values)):
            check_close(
                second[0].double(),
                first[0].double(),
                before.bounds.out + after.bounds.out,
                what="out of moved scores",
                message=message,
                axes=AXES,
            )
            check_close(
                second[1].double(),
                first[1].double() + constant / subject.profile.base.unit,
                before.bounds.lse + after.bounds.lse,
                what="lse of moved scores",
                message=message,
                axes=AXES[:1],
            )


@law(
    "ONL-5",
    pinned=tuple(
        OnlineSoftmaxCase(queries=2, keys=keys, scores=each, dtype=dtype, seed=keys)
        for keys in (2, 3, 5, 17, 33, 65, 129, 257)
        for each, dtype in ((Scores.GROWING, F64), (Scores.GROWING, F32), (Scores.FALLING, F64))
    ),
    explore=_of(Scores.GROWING, Scores.FALLING),
)
def law_a_larger_score_rescales_sum_and_output(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-5: when a later score is larger, the sum and the output so far are rescaled, once."""
    subject.judge_case(
        case, f"with scores that are {case.scores}, a running sum or output is scaled wrongly"
    )


@law(
    "ONL-6",
    pinned=tuple(
        OnlineSoftmaxCase(queries=2, keys=keys, scores=Scores.LAST, dtype=dtype, seed=keys)
        for keys in BESIDE_TILES
        for dtype in (F64, F32)
    ),
    explore=_of(Scores.LAST),
)
def law_the_last_tile_may_be_shorter(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-6: every key counts once, whatever the number of keys."""
    subject.judge_case(
        case, f"of {case.keys} keys, the last counts wrongly, or places behind it count"
    )


@law(
    "ONL-7",
    pinned=tuple(
        OnlineSoftmaxCase(queries=3, keys=keys, scores=each, dtype=dtype, seed=keys)
        for each in (Scores.HIDDEN, Scores.HIDDEN_FIRST, Scores.HIDDEN_LAST)
        for keys in (2, 9, 64, 300)
        for dtype in (F64, F32)
    ),
    explore=_of(Scores.HIDDEN, Scores.HIDDEN_FIRST, Scores.HIDDEN_LAST),
)
def law_hidden_scores_weigh_nothing(subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase) -> None:
    """ONL-7: a score of minus infinity weighs nothing, also where a whole tile has no other."""
    scores, values = case.draw()
    subject.judge(scores, values, "with hidden scores, the others are weighted wrongly")
    if case.scores is Scores.HIDDEN:
        return
    # values that no row reads may be any numbers
    is_read = (scores != -torch.inf).any(0)
    changed = torch.where(is_read[:, None], values, 64.0)
    expected = subject.expect(scores, values)
    check_both(
        subject.call(scores, changed), expected, "a value whose score is hidden changes a result"
    )


@law(
    "ONL-8",
    pinned=tuple(
        OnlineSoftmaxCase(queries=3, keys=keys, scores=Scores.HIDDEN_ROW, dtype=dtype, seed=1)
        for keys in (1, 5, 65)
        for dtype in DTYPES
    ),
    explore=_of(Scores.HIDDEN_ROW),
)
def law_a_row_of_hidden_scores_gives_zeros(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-8: a row whose scores are all hidden gives zeros, and minus infinity."""
    subject.judge_case(case, "a row without visible scores does not give zeros and -inf")


@law("ONL-9", pinned=WIDE, explore=_wide, cost=2.0)
def law_the_order_of_scores_does_not_matter(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-9: scores and values in another order give the same results."""
    scores, values = case.draw()
    generator = torch.Generator().manual_seed(case.seed)
    orders = (torch.arange(case.keys).flip(0), torch.randperm(case.keys, generator=generator))
    first, bound = subject.call(scores, values), subject.expect(scores, values).bounds
    for order in orders:
        second = subject.call(scores[:, order], values[order])
        other = subject.expect(scores[:, order], values[order]).bounds
        moved = scores[:, order], values[order]
        with explained_by(subject, subject.cause, (scores, values), moved):
            for name, one, two in zip(("out", "lse"), first, second, strict=True):
                check_close(
                    two.double(),
                    one.double(),
                    getattr(bound, name) + getattr(other, name),
                    what=f"{name} in another order",
                    message="the order of the keys changes a result",
                    axes=AXES if name == "out" else AXES[:1],
                )


@law(
    "ONL-10",
    pinned=tuple(
        OnlineSoftmaxCase(queries=queries, keys=5, scores=Scores.UNLIKE, dtype=dtype, seed=1)
        for queries in (2, 3, 17)
        for dtype in (F64, F32)
    ),
    explore=_of(Scores.UNLIKE),
)
def law_each_row_has_a_maximum_of_its_own(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-10: a row is computed from its own scores, however large those of other rows are."""
    subject.judge_case(case, "larger scores of another row change the result of a row")


@law(
    "ONL-11",
    pinned=tuple(
        OnlineSoftmaxCase(queries=3, keys=keys, dtype=dtype, seed=1)
        for dtype in DTYPES
        for keys in (1, 6, 65)
    ),
)
def law_a_nan_score_makes_its_row_nan(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-11: a NaN among the scores makes output and log-sum-exp of its row NaN, and no other."""
    scores, values = case.draw()
    for place in {0, case.keys // 2, case.keys - 1}:
        changed = scores.clone()
        changed[1, place] = torch.nan
        subject.judge(changed, values, f"score {place} of row 1 is NaN, and a result is wrong")


@law(
    "ONL-12",
    pinned=tuple(
        OnlineSoftmaxCase(queries=3, keys=9, layout=layout, dtype=dtype, seed=1)
        for layout in LAYOUTS
        for dtype in (F64, F32)
    ),
    explore=cases,
)
def law_scores_and_values_are_read_by_their_strides_and_stay_as_they_are(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-12: operands in any strides are read, and none is written to."""
    scores, values = case.draw()
    before = scores.clone(), values.clone()
    subject.judge(scores, values, f"operands that lie {case.layout} are read wrongly")
    for name, now, then in zip(("scores", "values"), (scores, values), before, strict=True):
        if not torch.equal(now, then):
            raise Explained(f"{name} are written to")


@law(
    "ONL-13",
    pinned=tuple(
        OnlineSoftmaxCase(queries=2, keys=4096, d_value=2, scores=each, dtype=dtype, seed=1)
        for dtype in (F16, BF16)
        for each in (Scores.EQUAL, Scores.NORMAL)
    ),
    explore=lambda subject: cases(subject, keys=4096, queries=2, scores=Scores.EQUAL),
)
def law_sums_of_16_bits_are_kept_in_float32_or_wider(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-13: for operands of 16 bits, running sums and outputs are kept in float32 or wider."""
    subject.judge_case(case, f"sums over {case.keys} keys are rounded to 16 bits")


@law(
    "ONL-14",
    pinned=tuple(case.but(backward=True) for case in PINNED),
    explore=lambda subject: cases(subject, backward=True),
    cost=3.0,
)
def law_recomputed_gradients_equal_the_definition(
    subject: OnlineSoftmaxSubject, case: OnlineSoftmaxCase
) -> None:
    """ONL-14: the gradients of scores and values are those of the definition; zero where hidden."""
    scores, values = case.draw()
    subject.judge_gradients(scores, values, case.draw_gradient())
