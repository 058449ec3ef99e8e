"""Laws of ATT: the effect of the scale, and its default."""

import math

import torch

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_equal
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import call_and_judge, check_equal_calls, round_to_grid
from attnspec.conformance.laws.helpers.cases import BF16, BIAS, DTYPES, F16, F32, HIDDEN
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Values

SMALL = Case(
    batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32, scale=0.5
)
TINIEST = SMALL.but(batch=1, heads=1, kv_heads=1, queries=2, keys=3, d_head=2, d_value=2)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
TILES = SMALL.but(batch=1, heads=1, kv_heads=1, queries=17, keys=129, d_head=64, d_value=64)
EXACT = (Values.NORMAL, Values.PEAKED, Values.ONE_HOT, Values.INTEGERS)


@law(
    "ATT-10",
    pinned=(
        TINIEST,
        TINIEST.but(scale=2.0),
        *vary(SMALL, dtype=DTYPES),
        *vary(SMALL, scale=(0.25, 1.0, 2.0)),
        SMALL.but(mask=BIAS, scale=0.25),
        SMALL.but(mask=BIAS, scale=2.0, values=Values.ONE_HOT),
        SMALL.but(queries=7, keys=5, is_causal=True),
        GROUPED,
        TILES.but(scale=0.125, values=Values.PEAKED),
    ),
    wide=(TILES.but(scale=0.125, values=Values.ONE_HOT, dtype=BF16),),
    explore=cases(scales=(0.0625, 0.25, 0.5, 2.0, 4.0), families=EXACT),
    cost=2,
)
def law_scale_multiplies_the_scores(subject: Subject, case: Case) -> None:
    """ATT-10: queries times a power of two, at scale 1, give what that scale gives."""
    call = subject.draw(case)
    # on the grid the product is exact and stays within the normal numbers
    call = call.but(query=round_to_grid(call.query))
    scale = call.scale if call.scale is not None else 1.0
    folded = call.but(query=scale * call.query, scale=1.0)
    check_equal_calls(subject, call, folded, "the scale does not multiply exactly the scores")


@law(
    "ATT-11",
    pinned=(
        TINIEST.but(d_value=1),
        TINIEST,
        *vary(SMALL.but(d_head=16, d_value=16), dtype=DTYPES),
        *vary(SMALL.but(d_value=5, values=Values.ONE_HOT), d_head=(1, 3, 8, 13, 48, 80)),
        GROUPED.but(d_head=7, d_value=7, mask=BIAS),
        TILES.but(values=Values.PEAKED),
    ),
    wide=[SMALL.but(d_head=d, d_value=d) for d in (1, 3, 32, 65, 96, 128)],
    explore=cases(scales=(None,)),
    cost=2,
)
def law_default_scale(subject: Subject, case: Case) -> None:
    """ATT-11: without a scale the result is as with 1 / sqrt(d_head), whatever d_value is."""
    call = subject.draw(case, scale=None)
    if subject.refuses(case.but(scale=1.0)) is not None:
        call_and_judge(subject, call, "the default scale is not 1 / sqrt(d_head)")
        return
    explicit = call.but(scale=1 / math.sqrt(case.d_head))
    check_equal_calls(subject, call, explicit, "the default scale is not 1 / sqrt(d_head)")


@law(
    "ATT-12",
    pinned=(
        TINIEST.but(scale=0.0),
        TINIEST.but(scale=-1.0),
        TINIEST.but(scale=0.0, is_causal=True),
        *vary(SMALL.but(scale=-0.5), dtype=DTYPES),
        SMALL.but(scale=0.0, dtype=F16),
        SMALL.but(scale=-0.5, queries=7, keys=5, is_causal=True),
        SMALL.but(scale=-0.5, mask=HIDDEN),
        SMALL.but(scale=0.0, mask=BIAS),
        SMALL.but(scale=-0.0),
        SMALL.but(scale=-2.0, values=Values.NEGATIVE),
        GROUPED.but(scale=-0.25),
        TILES.but(scale=-0.125, values=Values.PEAKED),
    ),
    wide=(
        TINIEST.but(scale=-1.0, is_causal=True),
        *vary(SMALL.but(scale=0.0), dtype=DTYPES),
        TILES.but(scale=0.0, dtype=BF16),
        TILES.but(scale=-0.125, queries=300, keys=300, is_causal=True),
    ),
    explore=cases(scales=(0.0, -0.1, -0.5, -0.7, -2.0)),
    cost=2,
)
def law_negative_and_zero_scale(subject: Subject, case: Case) -> None:
    """ATT-12: a negative scale negates every query, a scale of zero makes it zero."""
    call = subject.draw(case)
    if case.scale is None or case.scale == 0:
        positive = call.but(query=torch.zeros_like(call.query), scale=1.0)
        message = "a scale of zero does not give every score the same weight"
    else:
        positive = call.but(query=-call.query, scale=-case.scale)
        message = "a negative scale does not act as negated queries"
    check_equal_calls(subject, call, positive, message)


@law(
    "ATT-13",
    pinned=(
        TINIEST,
        TINIEST.but(values=Values.INTEGERS),
        *vary(SMALL, dtype=DTYPES),
        SMALL.but(scale=0.7, seed=2),
        SMALL.but(mask=BIAS),
        GROUPED.but(seed=1, values=Values.INTEGERS),
        TILES.but(seed=2, values=Values.PEAKED),
        TILES.but(seed=2, values=Values.INTEGERS, d_head=128, d_value=128),
    ),
    wide=(
        *vary(TINIEST.but(values=Values.INTEGERS), seed=(1, 2)),
        *vary(SMALL.but(values=Values.INTEGERS, seed=1), dtype=DTYPES),
        *vary(SMALL.but(scale=0.7), seed=(0, 1)),
    ),
    explore=cases(scales=POSITIVE, families=EXACT),
    cost=2,
)
def law_a_power_of_four_moves_from_scale_to_queries(subject: Subject, case: Case) -> None:
    """ATT-13: queries times a power of four, the scale divided by it, give the same result.

    The two calls compute the same numbers except for exponents: every score is a sum of products
    of a query, a key and the scale (or of two square roots of the scale, hence four and not two),
    and a power of two passes through each product, sum and rounding. If no number leaves the
    normal range, as with small integers, the results of a deterministic implementation are equal
    bit by bit.
    """
    reason = subject.refuses(case.but(scale=1.0))
    if reason is not None:
        raise NotClaimed(reason)
    call = subject.draw(case)
    integers = case.values is Values.INTEGERS
    call = call.but(
        query=call.query if integers else round_to_grid(call.query),
        scale=1 / math.sqrt(case.d_head) if case.scale is None else case.scale,
    )
    factor = (4.0, 0.25, 16.0)[case.seed % 3]
    traded = call.but(query=factor * call.query, scale=(call.scale or 0.0) / factor)
    message = f"queries times {factor:g}, the scale divided by it, give another result"
    if integers and subject.implementation.profile.deterministic:
        check_equal(
            subject.call(traded), subject.call(call), what="out", message=f"{message}, bit by bit"
        )
    check_equal_calls(subject, call, traded, message)
