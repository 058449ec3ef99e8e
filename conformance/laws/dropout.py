"""Laws of DRP: which weights are dropped, how often, and what becomes of the others.

Values of one-hot rows show the weights themselves, so that each can be seen to be dropped or kept.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool

from attnspec.conformance.compare import check_close
from attnspec.conformance.frequencies import check_frequencies
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import check_oracle
from attnspec.conformance.laws.dropout_sides import (
    DROPPING,
    TINIEST,
    Keep,
    dropping,
    kept,
    seeded,
    showing,
    without,
)
from attnspec.conformance.strategies import every
from attnspec.conformance.subject import Raised, Subject, sound
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Mask, MaskPattern, MaskShape

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
MANY = DROPPING.but(batch=4, heads=4, kv_heads=4, queries=64, keys=64, d_head=8, d_value=64)
PARTLY = Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)
NO_PROBABILITIES = (-0.1, 1.5, float("nan"))
LAGS = (1, 2, 8, 16, 32)


@law(
    "DRP-1",
    judges=Judged.ATTENTION,
    pinned=(TINIEST.but(dropout_p=0.5), *every(DROPPING, dtype=(F64, F16, BF16))),
    needs={Feature.DROPOUT},
)
def law_no_dropout_drops_nothing(subject: Subject, case: Case) -> None:
    """DRP-1: with a probability of zero nothing is dropped, and no random number is drawn."""
    call = without(subject.draw(case))
    before = torch.get_rng_state()
    out = sound(subject.run(call, dropout_p=0.0), call)
    if not torch.equal(before, torch.get_rng_state()):
        raise Violation("random numbers are drawn where nothing is to be dropped")
    check_oracle(call, out, subject.expect(call), "something is dropped with probability zero")


@law(
    "DRP-2",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(dropout_p=0.5, keys=8, d_value=8),
        *every(DROPPING, dtype=(F32, F64, F16, BF16), dropout_p=(0.1, 0.3, 0.9)),
        *every(DROPPING, is_causal=(True,), mask=(PARTLY,)),
        DROPPING.but(heads=6, kv_heads=2, queries=17, keys=33, d_value=48),
        DROPPING.but(queries=65, keys=129, d_head=64, d_value=129),
        *every(DROPPING, window=((2, 1),), softcap=(1.0,), sinks=(True,), alibi=(True,)),
        DROPPING.but(window=(2, 1), softcap=1.0, sinks=True, alibi=True, is_causal=True),
    ),
    explore=dropping,
    needs={Feature.DROPOUT},
    cost=2,
)
def law_a_weight_is_dropped_or_grows(subject: Subject, case: Case) -> None:
    """DRP-2: each weight is zero or itself over 1 - p, and the sum is not formed anew."""
    call = showing(subject, case)
    with seeded(case):
        out = subject.call(call)
    keep, exact, bound = kept(subject, call, out)
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
    judges=Judged.ATTENTION,
    pinned=tuple(
        each.but(dropout_p=1.0) for each in (TINIEST, *every(DROPPING, dtype=(F64, BF16)))
    ),
    needs={Feature.DROPOUT},
)
def law_dropping_everything_gives_zeros(subject: Subject, case: Case) -> None:
    """DRP-3: with a probability of one the output is zero."""
    out = subject.call(subject.draw(case))
    zero = torch.zeros_like(out, dtype=F64)
    check_close(out, zero, zero, what="out", message="not zero though everything is dropped")


@law(
    "DRP-4",
    judges=Judged.ATTENTION,
    pinned=every(MANY, dropout_p=(0.5, 0.1, 0.8)),
    needs={Feature.DROPOUT},
)
def law_weights_are_dropped_with_the_probability_given(subject: Subject, case: Case) -> None:
    """DRP-4: a weight is dropped with probability p, in every head, row and column."""
    keep = _seen(subject, case)
    probabilities = {True: 1 - case.dropout_p, False: case.dropout_p}
    check_frequencies(_counted(keep), probabilities, "kept weights")
    for axis, name in enumerate(("batch element", "head", "query", "key")):
        for place, part in enumerate(keep.unbind(axis)):
            told = f"kept weights of {name} {place}"
            check_frequencies(_counted(part), probabilities, told)


@law(
    "DRP-5",
    judges=Judged.ATTENTION,
    pinned=every(MANY, dropout_p=(0.5, 0.2)),
    needs={Feature.DROPOUT},
)
def law_weights_are_dropped_independently(subject: Subject, case: Case) -> None:
    """DRP-5: whether a weight is dropped says nothing of another one's fate."""
    keep = _seen(subject, case)
    for told, one, two in _pairs(keep):
        _check_independent(one, two, case.dropout_p, told)


@law(
    "DRP-6",
    judges=Judged.ATTENTION,
    pinned=every(MANY.but(batch=2), dropout_p=(0.5, 0.2)),
    needs={Feature.DROPOUT},
)
def law_calls_drop_independently(subject: Subject, case: Case) -> None:
    """DRP-6: what one call drops says nothing of what the next one does."""
    call = showing(subject, case)
    with seeded(case):
        first, second = (kept(subject, call, subject.call(call))[0] for _ in range(2))
    _check_independent(first, second, case.dropout_p, "weights of two calls")


@law(
    "DRP-7",
    judges=Judged.ATTENTION,
    pinned=(TINIEST.but(dropout_p=0.5), *every(DROPPING, dtype=(F32, F64, F16, BF16))),
    needs={Feature.DROPOUT},
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
    judges=Judged.ATTENTION,
    pinned=(TINIEST.but(dropout_p=0.5, return_lse=True), DROPPING.but(return_lse=True)),
    needs={Feature.DROPOUT, Feature.LSE},
)
def law_dropout_leaves_the_log_sum_exp_alone(subject: Subject, case: Case) -> None:
    """DRP-9: the log-sum-exp is that of all readable scores, dropped or not."""
    call = subject.draw(case)
    with seeded(case):
        _, lse = subject.call_with_lse(call)
    expected = subject.expect(without(call))
    check_close(
        lse,
        expected.lse,
        expected.lse_bound,
        what="lse",
        message="the log-sum-exp feels what is dropped",
        axes=("batch", "head", "query"),
    )


@law(
    "DRP-10",
    judges=Judged.ATTENTION,
    pinned=(TINIEST, TINIEST.but(d_value=1)),
    needs={Feature.DROPOUT},
)
def law_a_probability_lies_between_zero_and_one(subject: Subject, case: Case) -> None:
    """DRP-10: what is no probability is refused."""
    call = subject.draw(case)
    for p in NO_PROBABILITIES:
        try:
            subject.run(call, dropout_p=p)
        except Raised:
            continue
        raise Violation(f"dropout_p={p} is not refused")


def _seen(subject: Subject, case: Case) -> Keep:
    """What one call keeps."""
    call = showing(subject, case)
    with seeded(case):
        return kept(subject, call, subject.call(call))[0]


def _counted(keep: Bool[torch.Tensor, "..."]) -> dict[bool, int]:
    """How many are kept, and how many are not."""
    kept = int(keep.sum())
    return {True: kept, False: keep.numel() - kept}


def _pairs(keep: Keep) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Pairs of weights that lie some way apart, each weight in one pair of each kind at most."""
    for axis, name in enumerate(("batch elements", "heads", "queries", "keys")):
        for lag in LAGS:
            size = keep.shape[axis]
            left = [place for place in range(size - lag) if place // lag % 2 == 0]
            if left:
                at = torch.tensor(left, device=keep.device)
                told = f"weights of {name} {lag} apart"
                yield told, keep.index_select(axis, at), keep.index_select(axis, at + lag)
    heads = min(keep.shape[0], keep.shape[1])
    if heads > 1 and keep.shape[2] == keep.shape[3]:
        upper = torch.ones(keep.shape[2:], dtype=torch.bool, device=keep.device).triu(1)
        yield "a weight and its mirror image", keep[..., upper], keep.mT[..., upper]


def _check_independent(
    one: Bool[torch.Tensor, "..."], two: Bool[torch.Tensor, "..."], p: float, told: str
) -> None:
    """Hold pairs of fates to the product of their probabilities."""
    chance = {True: 1 - p, False: p}
    both = {(a, b): chance[a] * chance[b] for a in chance for b in chance}
    fates = {(a, b): int(((one == a) & (two == b)).sum()) for a, b in both}
    check_frequencies(fates, both, f"{told}, kept together")
