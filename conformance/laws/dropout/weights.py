"""Laws of DRP: dropped weights, their frequency and independence, and the scaling of kept ones.

With one-hot values the output is the weights, so that each is visibly dropped or kept.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool

from attnspec.conformance.attention.invalid import INVALID_PROBABILITIES
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import vary
from attnspec.conformance.attention.subject import Subject, checked_output
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.frequencies import check_frequencies
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, F16, F64, PADDING
from attnspec.conformance.laws.helpers.dropout import (
    DROPOUT,
    TINIEST,
    Keep,
    call_showing_weights,
    dropout_cases,
    kept_weights,
    seeded,
    without_dropout,
)
from attnspec.conformance.laws.helpers.options import check_refused
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Mask, MaskPattern, MaskShape

MANY = DROPOUT.but(batch=4, heads=4, kv_heads=4, queries=64, keys=64, d_head=8, d_value=64)
LAGS = (1, 2, 8, 16, 32)


@law(
    "DRP-1",
    pinned=(TINIEST.but(dropout_p=0.5), *vary(DROPOUT, dtype=(F64, F16, BF16))),
)
def law_no_dropout_drops_nothing(subject: Subject, case: Case) -> None:
    """DRP-1: with a probability of zero nothing is dropped, and no random number is drawn."""
    call = without_dropout(subject.draw(case))
    before = torch.get_rng_state()
    out = checked_output(subject.run(call, dropout_p=0.0), call)
    if not torch.equal(before, torch.get_rng_state()):
        raise Violation("random numbers are drawn though the probability is zero")
    check_oracle(call, out, subject.expect(call), "a weight is dropped with probability zero")


@law(
    "DRP-2",
    pinned=(
        TINIEST.but(dropout_p=0.5, keys=8, d_value=8),
        *vary(DROPOUT, dtype=DTYPES, dropout_p=(0.1, 0.3, 0.9)),
        *vary(DROPOUT, is_causal=(True,), mask=(PADDING,)),
        DROPOUT.but(heads=6, kv_heads=2, queries=17, keys=33, d_value=48),
        DROPOUT.but(queries=65, keys=129, d_head=64, d_value=129),
        *vary(DROPOUT, window=((2, 1),), softcap=(1.0,), sinks=(True,), alibi=(True,)),
        DROPOUT.but(window=(2, 1), softcap=1.0, sinks=True, alibi=True, is_causal=True),
        # the last queries have no key in their windows
        *vary(DROPOUT.but(queries=7, keys=3), window=((1, None),)),
        DROPOUT.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.QUERIES)),
        DROPOUT.but(mask=Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)),
    ),
    explore=dropout_cases,
    cost=2,
)
def law_a_weight_is_dropped_or_scaled_up(subject: Subject, case: Case) -> None:
    """DRP-2: each weight is zero or itself over 1 - p, and the sum is not formed anew."""
    call = call_showing_weights(subject, case)
    with seeded(case):
        out = subject.call(call)
    keep, exact, bound = kept_weights(subject, call, out)
    check_close(
        out,
        torch.where(keep, exact, 0.0),
        torch.where(keep, bound, 0.0),
        what="out",
        message="a weight is neither dropped nor the weight over 1 - p",
        dtype=case.dtype,
    )


@law(
    "DRP-3",
    pinned=tuple(case.but(dropout_p=1.0) for case in (TINIEST, *vary(DROPOUT, dtype=(F64, BF16)))),
)
def law_dropping_everything_gives_zeros(subject: Subject, case: Case) -> None:
    """DRP-3: with a probability of one the output is zero."""
    with seeded(case):
        out = subject.call(subject.draw(case))
    zero = torch.zeros_like(out, dtype=F64)
    check_close(
        out, zero, zero, what="out", message="the output is not zero though every weight is dropped"
    )


@law(
    "DRP-4",
    pinned=vary(MANY, dropout_p=(0.5, 0.1, 0.8)),
)
def law_weights_are_dropped_with_the_given_probability(subject: Subject, case: Case) -> None:
    """DRP-4: a weight is dropped with probability p, in every head, row and column."""
    keep = _draw_kept(subject, case)
    probabilities = {True: 1 - case.dropout_p, False: case.dropout_p}
    check_frequencies(_count_kept(keep), probabilities, "kept weights")
    for axis, axis_name in enumerate(("batch element", "head", "query", "key")):
        for place, part in enumerate(keep.unbind(axis)):
            name = f"kept weights of {axis_name} {place}"
            check_frequencies(_count_kept(part), probabilities, name)


@law(
    "DRP-5",
    pinned=vary(MANY, dropout_p=(0.5, 0.2)),
)
def law_weights_are_dropped_independently(subject: Subject, case: Case) -> None:
    """DRP-5: weights are dropped independently of each other."""
    keep = _draw_kept(subject, case)
    for name, left, right in distant_pairs(keep):
        _check_independent(left, right, case.dropout_p, name)


@law(
    "DRP-6",
    pinned=vary(MANY.but(batch=2), dropout_p=(0.5, 0.2)),
)
def law_calls_drop_independently(subject: Subject, case: Case) -> None:
    """DRP-6: two calls drop weights independently of each other."""
    call = call_showing_weights(subject, case)
    with seeded(case):
        first, second = (kept_weights(subject, call, subject.call(call))[0] for _ in range(2))
    _check_independent(first, second, case.dropout_p, "weights of two calls")


@law(
    "DRP-7",
    pinned=(TINIEST.but(dropout_p=0.5), *vary(DROPOUT, dtype=DTYPES)),
)
def law_equal_seeds_drop_alike(subject: Subject, case: Case) -> None:
    """DRP-7: after the same seed the same call gives the same output."""
    call = subject.draw(case)
    with seeded(case):
        first = subject.call(call)
    with seeded(case):
        second = subject.call(call)
    if subject.implementation.profile.deterministic and not torch.equal(first, second):
        raise Violation("equal seeds do not give equal outputs")


@law(
    "DRP-9",
    pinned=(TINIEST.but(dropout_p=0.5, return_lse=True), DROPOUT.but(return_lse=True)),
)
def law_dropout_leaves_the_log_sum_exp_alone(subject: Subject, case: Case) -> None:
    """DRP-9: the log-sum-exp is that of all readable scores, dropped or not."""
    call = subject.draw(case)
    with seeded(case):
        _, lse = subject.call_with_lse(call)
    expected = subject.expect(without_dropout(call))
    check_close(
        lse,
        expected.lse,
        expected.lse_bound,
        what="lse",
        message="dropout changes the log-sum-exp",
        axes=("batch", "head", "query"),
    )


@law(
    "DRP-10",
    "TEN-20",
    pinned=(TINIEST, TINIEST.but(d_value=1)),
    needs={Feature.DROPOUT, Feature.VALIDATES},
)
def law_a_probability_lies_between_zero_and_one(subject: Subject, case: Case) -> None:
    """DRP-10: a number that is no probability is refused."""
    call = subject.draw(case)
    for p in INVALID_PROBABILITIES:
        check_refused(subject, call.but(dropout_p=p), f"a dropout_p of {p}")


def _draw_kept(subject: Subject, case: Case) -> Keep:
    """Make a call and return which of its weights are kept."""
    call = call_showing_weights(subject, case)
    with seeded(case):
        return kept_weights(subject, call, subject.call(call))[0]


def _count_kept(keep: Bool[torch.Tensor, "..."]) -> dict[bool, int]:
    """Count kept and dropped weights."""
    kept = int(keep.sum())
    return {True: kept, False: keep.numel() - kept}


def distant_pairs(keep: Keep) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Generate named pairs of weights at several distances, no weight twice in pairs of a kind."""
    for axis, axis_name in enumerate(("batch elements", "heads", "queries", "keys")):
        for lag in LAGS:
            size = keep.shape[axis]
            starts = [place for place in range(size - lag) if place // lag % 2 == 0]
            if starts:
                at = torch.tensor(starts, device=keep.device)
                pair_name = f"weights of {axis_name} {lag} apart"
                yield pair_name, keep.index_select(axis, at), keep.index_select(axis, at + lag)
    heads = min(keep.shape[0], keep.shape[1])
    if heads > 1 and keep.shape[2] == keep.shape[3]:
        upper = torch.ones(keep.shape[2:], dtype=torch.bool, device=keep.device).triu(1)
        yield "a weight and its mirror image", keep[..., upper], keep.mT[..., upper]


def _check_independent(
    left: Bool[torch.Tensor, "..."], right: Bool[torch.Tensor, "..."], p: float, name: str
) -> None:
    """Compare how often two dropped or kept weights meet with the product of their chances."""
    chance = {True: 1 - p, False: p}
    probabilities = {(a, b): chance[a] * chance[b] for a in chance for b in chance}
    frequencies = {(a, b): int(((left == a) & (right == b)).sum()) for a, b in probabilities}
    check_frequencies(frequencies, probabilities, f"{name}, kept together")
