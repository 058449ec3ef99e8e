"""Laws of POS: ALiBi lowers a score in proportion to the distance of its key."""

import torch

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.helpers.calls import check_target, plain, repeat_kv, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    F16,
    F64,
    GROUPED,
    HIDDEN,
    SMALL,
    TILES,
    TINIEST,
    UNBIASED,
)
from attnspec.conformance.laws.helpers.options import (
    alibi_bias,
    scores_of_bias,
    slopes_of,
    weights_of_scores,
)
from attnspec.conformance.laws.helpers.rows import additive_mask, check_rows
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

OTHER_OPTIONS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS)
WITH_ALIBI = SMALL.but(alibi=True)
SLOPES = {
    1: (8,),
    2: (4, 8),
    3: (4, 8, 2),
    4: (2, 4, 6, 8),
    6: (2, 4, 6, 8, 1, 3),
    7: (2, 4, 6, 8, 1, 3, 5),
    8: (1, 2, 3, 4, 5, 6, 7, 8),
    12: (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5),
}
"""By number of heads, the exponents h of the slopes 2^-h: written out, not computed."""


def _has_mask(case: Case) -> bool:
    return plain(case) and case.mask is not None


@law(
    "POS-1",
    pinned=(
        TINIEST.but(alibi=True, queries=3),
        *vary(WITH_ALIBI, dtype=DTYPES),
        *vary(WITH_ALIBI.but(keys=17), values=Values),
        *vary(WITH_ALIBI, keys=(1, 5, 16, 33)),
        WITH_ALIBI.but(queries=9, keys=4),
        WITH_ALIBI.but(mask=HIDDEN),
        WITH_ALIBI.but(is_causal=True),
        WITH_ALIBI.but(window=(2, 1)),
        WITH_ALIBI.but(sinks=True),
        WITH_ALIBI.but(softcap=1.0, values=Values.PEAKED),
        GROUPED.but(alibi=True),
        TILES.but(alibi=True),
        TILES.but(alibi=True, queries=3, keys=300, heads=8, kv_heads=8, d_head=16, d_value=16),
        TILES.but(alibi=True, queries=3, keys=300, heads=8, kv_heads=8, dtype=F16),
    ),
    explore=cases(always=(Feature.ALIBI,), sometimes=OTHER_OPTIONS, only=plain),
    cost=3,
)
def law_alibi_lowers_scores_by_distance(subject: Subject, case: Case) -> None:
    """POS-1: a score loses slope times distance, also where queries and keys differ in number."""
    call = subject.draw(case)
    expected = subject.judge(
        call, subject.call(call), "the output with ALiBi differs from the definition"
    )
    require_evidence(call, expected)
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        return
    scores = scores_of_bias(subject, call, alibi_bias(subject, call))
    weights, _ = weights_of_scores(subject, call, scores)
    zeros = call.but(query=torch.zeros_like(call.query))
    target = weights @ repeat_kv(subject, call.value.double(), case.heads)
    check_target(
        subject, zeros, target, "the weights are not proportional to e^(-slope * distance)"
    )


@law(
    "POS-1",
    pinned=(
        TINIEST.but(alibi=True, keys=16, d_value=16, dtype=BF16),
        *vary(WITH_ALIBI.but(keys=16, d_value=16, d_head=16), dtype=(F16, BF16)),
        GROUPED.but(alibi=True, d_value=32, d_head=32, dtype=BF16),
    ),
    cost=2,
)
def law_slopes_are_not_rounded_to_the_dtype_of_the_query(subject: Subject, case: Case) -> None:
    """POS-1: slopes of a wider dtype than the query's are used as they are given."""
    call = subject.draw(case)
    if slopes_of(call).dtype == case.dtype:
        raise NotClaimed("the slopes have the dtype of the query")
    # the weight of distance D would change by e^(0.45 eps D), and unit vectors show each weight
    slope = 1 + 0.45 * torch.finfo(case.dtype).eps
    eye = torch.eye(case.keys, case.d_value, dtype=case.dtype, device=call.value.device)
    call = call.but(
        query=torch.zeros_like(call.query),
        value=eye.expand_as(call.value).contiguous(),
        alibi_slopes=torch.full_like(slopes_of(call), slope),
    )
    expected = subject.judge(call, subject.call(call), "slopes are not used as they are given")
    require_evidence(call, expected)


@law(
    "POS-2",
    pinned=(
        TINIEST.but(alibi=True, queries=3, scale=2.0),
        TINIEST.but(alibi=True, keys=33, softcap=0.5),
        *vary(WITH_ALIBI.but(softcap=0.5, keys=17), dtype=DTYPES),
        *vary(WITH_ALIBI.but(keys=17), scale=(0.1, 0.5, 2.0)),
        WITH_ALIBI.but(softcap=1.0, scale=2.0, mask=HIDDEN, keys=17),
        GROUPED.but(alibi=True, softcap=0.5, scale=0.5),
        TILES.but(alibi=True, softcap=1.0),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHER_OPTIONS,
        scales=(0.1, 0.5, 2.0),
        patterns=UNBIASED,
        only=plain,
    ),
    cost=2,
)
def law_alibi_is_added_after_scale_and_softcap(subject: Subject, case: Case) -> None:
    """POS-2: neither the scale nor a softcap changes the bias of a distance.

    If the profile says that the softcap comes after the bias, it bounds this bias too.
    """
    call = subject.draw(case)
    call = call.but(query=torch.zeros_like(call.query))
    scores = scores_of_bias(subject, call, alibi_bias(subject, call))
    weights, _ = weights_of_scores(subject, call, scores)
    target = weights @ repeat_kv(subject, call.value.double(), case.heads)
    check_target(subject, call, target, "the scale or the softcap changes the ALiBi bias")


@law(
    "POS-3",
    pinned=(
        TINIEST.but(alibi=True, mask=BIAS),
        *vary(WITH_ALIBI.but(mask=BIAS), dtype=DTYPES),
        *vary(
            WITH_ALIBI,
            mask=[
                Mask(kind=MaskKind.FLOAT, pattern=pattern, shape=shape)
                for pattern in (MaskPattern.BIAS, MaskPattern.RANDOM)
                for shape in (MaskShape.FULL, MaskShape.RANK_2, MaskShape.KEYS)
            ],
        ),
        WITH_ALIBI.but(mask=HIDDEN, softcap=1.0),
        WITH_ALIBI.but(mask=BIAS, queries=9, keys=4),
        GROUPED.but(alibi=True, mask=BIAS),
        TILES.but(alibi=True, mask=BIAS),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHER_OPTIONS,
        masked=True,
        scales=POSITIVE,
        only=_has_mask,
    ),
    cost=2,
)
def law_alibi_and_a_float_mask_add(subject: Subject, case: Case) -> None:
    """POS-3: slopes beside a mask are one float mask, their sum."""
    call = subject.draw(case)
    attn_mask = call.attn_mask
    if attn_mask is None:
        raise ValueError("the law of ALiBi and masks needs a case with both")
    mask = additive_mask(attn_mask, F64) if attn_mask.dtype == torch.bool else attn_mask.double()
    spelled = call.but(alibi_slopes=None, attn_mask=mask + alibi_bias(subject, call))
    target = subject.expect(spelled, with_bound=False)
    out, expected = subject.call(call), subject.expect(call)
    check_oracle(
        call, out, expected, "the output with ALiBi and a mask differs from the definition"
    )
    check_close(
        out,
        target.out,
        expected.bound,
        what="out",
        message="the slopes and the mask do not add up",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    require_evidence(call, expected)


@law(
    "POS-4",
    pinned=(
        TINIEST.but(alibi=True, heads=2, kv_heads=2),
        TINIEST.but(alibi=True, heads=4, kv_heads=2),
        *vary(WITH_ALIBI, dtype=DTYPES),
        WITH_ALIBI.but(mask=HIDDEN, softcap=1.0),
        GROUPED.but(alibi=True),
        GROUPED.but(alibi=True, kv_heads=1, dtype=BF16),
        TILES.but(alibi=True, heads=2, kv_heads=2),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHER_OPTIONS,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.heads > 1,
    ),
    cost=4,
)
def law_a_slope_of_zero_changes_nothing(subject: Subject, case: Case) -> None:
    """POS-4: a head with slope zero is as without ALiBi, and every other as with its own slope."""
    call = subject.draw(case)
    bare = subject.expect(call.but(alibi_slopes=None), with_bound=False).out
    sloped = subject.expect(call, with_bound=False).out
    every_head = torch.arange(case.heads, device=call.query.device)
    for flat in (every_head >= 0, every_head % 2 == 0, every_head == case.heads - 1):
        slopes = torch.where(flat, 0.0, slopes_of(call))
        changed = call.but(alibi_slopes=slopes)
        out, expected = subject.call(changed), subject.expect(changed)
        target = torch.where(flat[:, None, None], bare, sloped)
        rows = torch.ones(out.shape[:3], dtype=torch.bool, device=out.device)
        message = "a head does not use its own slope"
        check_rows(changed, out, target, expected, rows, message)
        require_evidence(changed, expected)


@law(
    "POS-5",
    pinned=(
        *(
            SMALL.but(alibi=True, batch=1, heads=heads, kv_heads=heads, queries=4)
            for heads in SLOPES
        ),
        *vary(WITH_ALIBI.but(heads=6, kv_heads=6), dtype=(F64, F16, BF16)),
        GROUPED.but(alibi=True, heads=12, kv_heads=4),
        TILES.but(alibi=True, heads=7, kv_heads=7, queries=5, keys=65),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        masked=False,
        causal=False,
        scales=POSITIVE,
        only=lambda case: case.heads in SLOPES,
    ),
    cost=4,
)
def law_slopes_equal_the_published_ones(subject: Subject, case: Case) -> None:
    """POS-5: the published slopes for n heads give each head the weights of its own slope."""
    call = subject.draw(case)
    slopes = 2.0 ** -torch.tensor(SLOPES[case.heads], dtype=F64, device=call.query.device)
    call = call.but(
        query=torch.zeros_like(call.query),
        alibi_slopes=slopes if case.dtype == F64 else slopes.float(),
    )
    weights, _ = weights_of_scores(subject, call, alibi_bias(subject, call))
    target = weights @ repeat_kv(subject, call.value.double(), case.heads)
    check_target(subject, call, target, "the heads do not use the published slopes")


@law(
    "POS-6",
    pinned=(
        TINIEST.but(alibi=True, queries=3),
        *vary(WITH_ALIBI, dtype=DTYPES),
        WITH_ALIBI.but(queries=9, keys=4),
        WITH_ALIBI.but(is_causal=True),
        WITH_ALIBI.but(mask=HIDDEN, softcap=1.0),
        WITH_ALIBI.but(window=(2, 1), sinks=True),
        GROUPED.but(alibi=True),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHER_OPTIONS,
        scales=POSITIVE,
        lengths=(1, 2, 3, 5, 8, 17),
        only=plain,
    ),
    cost=3,
)
def law_slopes_may_have_any_sign(subject: Subject, case: Case) -> None:
    """POS-6: with a slope below zero distant keys gain, also beside heads with other slopes."""
    call = subject.draw(case)
    slopes = slopes_of(call)
    every_head = torch.arange(case.heads, device=slopes.device)
    mixed = torch.where(every_head % 3 == 0, -slopes, torch.where(every_head % 3 == 1, 0.0, slopes))
    for changed in (call.but(alibi_slopes=-slopes), call.but(alibi_slopes=mixed)):
        expected = subject.judge(
            changed, subject.call(changed), "the output is wrong with slopes below zero"
        )
        require_evidence(changed, expected)
