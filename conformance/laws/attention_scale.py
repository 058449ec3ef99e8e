"""Laws of ATT, second part: what the scale multiplies, and what it is when none is given."""

import math

import torch

from attnspec.conformance import tally
from attnspec.conformance.compare import check_equal
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, check_sides, grid, judged
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
SMALL = Case(
    batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32, scale=0.5
)
TINIEST = SMALL.but(batch=1, heads=1, kv_heads=1, queries=2, keys=3, d_head=2, d_value=2)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
TILES = SMALL.but(batch=1, heads=1, kv_heads=1, queries=17, keys=129, d_head=64, d_value=64)
HIDDEN = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
EXACT = (Values.NORMAL, Values.PEAKED, Values.ONE_HOT, Values.INTEGERS)


@law(
    "ATT-10",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        TINIEST.but(scale=2.0),
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        *every(SMALL, scale=(0.25, 1.0, 2.0)),
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
    # on the grid the product is exact, also where it would leave the normal numbers
    call = call.but(query=grid(call.query))
    scale = call.scale if call.scale is not None else 1.0
    folded = call.but(query=scale * call.query, scale=1.0)
    check_sides(subject, call, folded, "the scale does not multiply the scores, and them alone")


@law(
    "ATT-11",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(d_value=1),
        TINIEST,
        *every(SMALL.but(d_head=16, d_value=16), dtype=(F32, F64, F16, BF16)),
        *every(SMALL.but(d_value=5, values=Values.ONE_HOT), d_head=(1, 3, 8, 13, 48, 80)),
        GROUPED.but(d_head=7, d_value=7, mask=BIAS),
        TILES.but(values=Values.PEAKED),
    ),
    wide=[SMALL.but(d_head=d, d_value=d) for d in (1, 3, 32, 65, 96, 128)],
    explore=cases(scales=(None,)),
    cost=2,
)
def law_default_scale(subject: Subject, case: Case) -> None:
    """ATT-11: without a scale the result is that of 1 / sqrt(d_head), whatever d_value is."""
    call = subject.draw(case, scale=None)
    if subject.refuses(case.but(scale=1.0)) is not None:
        judged(subject, call, "the default scale is not 1 / sqrt(d_head)")
        return
    given = call.but(scale=1 / math.sqrt(case.d_head))
    check_sides(subject, call, given, "the default scale is not 1 / sqrt(d_head)")


@law(
    "ATT-12",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(scale=0.0),
        TINIEST.but(scale=-1.0),
        TINIEST.but(scale=0.0, is_causal=True),
        *every(SMALL.but(scale=-0.5), dtype=(F32, F64, F16, BF16)),
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
        *every(SMALL.but(scale=0.0), dtype=(F32, F64, F16, BF16)),
        TILES.but(scale=0.0, dtype=BF16),
    ),
    explore=cases(scales=(0.0, -0.1, -0.5, -0.7, -2.0)),
    cost=2,
)
def law_negative_and_zero_scale(subject: Subject, case: Case) -> None:
    """ATT-12: a negative scale turns every query round, a scale of zero makes it zero."""
    call = subject.draw(case)
    if case.scale is None or case.scale == 0:
        positive = call.but(query=torch.zeros_like(call.query), scale=1.0)
        message = "a scale of zero does not give every score the same weight"
    else:
        positive = call.but(query=-call.query, scale=-case.scale)
        message = "a negative scale is not that of the queries turned round"
    check_sides(subject, call, positive, message)


@law(
    "ATT-13",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST,
        TINIEST.but(values=Values.INTEGERS),
        *every(SMALL, dtype=(F32, F64, F16, BF16)),
        SMALL.but(scale=0.7, seed=2),
        SMALL.but(mask=BIAS),
        GROUPED.but(seed=1, values=Values.INTEGERS),
        TILES.but(seed=2, values=Values.PEAKED),
        TILES.but(seed=2, values=Values.INTEGERS, d_head=128, d_value=128),
    ),
    wide=(
        *every(TINIEST.but(values=Values.INTEGERS), seed=(1, 2)),
        *every(SMALL.but(values=Values.INTEGERS, seed=1), dtype=(F32, F64, F16, BF16)),
        *every(SMALL.but(scale=0.7), seed=(0, 1)),
    ),
    explore=cases(scales=POSITIVE, families=EXACT),
    cost=2,
)
def law_queries_and_scale_trade_powers_of_four(subject: Subject, case: Case) -> None:
    """ATT-13: queries times a power of four, the scale divided by it, give the same result.

    The two calls meet the same numbers but for exponents: every score is a sum of products of
    a query, a key and the scale (or of two square roots of the scale, hence four and not two),
    and a power of two passes through each product, sum and rounding. Where nothing can leave
    the normal numbers, which small integers make sure of, the results are equal bit by bit,
    for an implementation that is deterministic at all.
    """
    reason = subject.refuses(case.but(scale=1.0))
    if reason is not None:
        raise tally.NotClaimed(reason)
    call = subject.draw(case)
    integers = case.values is Values.INTEGERS
    call = call.but(
        query=call.query if integers else grid(call.query),
        scale=1 / math.sqrt(case.d_head) if case.scale is None else case.scale,
    )
    factor = (4.0, 0.25, 16.0)[case.seed % 3]
    traded = call.but(query=factor * call.query, scale=(call.scale or 0.0) / factor)
    message = f"queries times {factor:g}, the scale divided by it, give another result"
    if integers and subject.implementation.profile.deterministic:
        check_equal(
            subject.call(traded), subject.call(call), what="out", message=f"{message}, bit by bit"
        )
    check_sides(subject, call, traded, message)
