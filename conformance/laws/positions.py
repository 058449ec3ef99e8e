"""Laws of POS: ALiBi lowers a score in proportion to the distance of its key."""

import torch

from attnspec.conformance.compare import check_close
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    check_oracle,
    check_target,
    evident,
    per_head,
    plain,
)
from attnspec.conformance.laws.masking_sides import additive, check_rows
from attnspec.conformance.laws.options_sides import (
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
    lowered,
    slopes_of,
    weighted,
)
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

OTHERS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS)
LEANING = SMALL.but(alibi=True)
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
"""How many times each head of so many halves a score per place: written out, not computed."""


def _biased(case: Case) -> bool:
    return plain(case) and case.mask is not None


@law(
    "POS-1",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(alibi=True, queries=3),
        *every(LEANING, dtype=DTYPES),
        *every(LEANING.but(keys=17), values=Values),
        *every(LEANING, keys=(1, 5, 16, 33)),
        LEANING.but(queries=9, keys=4),
        LEANING.but(mask=HIDDEN),
        LEANING.but(is_causal=True),
        LEANING.but(window=(2, 1)),
        LEANING.but(sinks=True),
        LEANING.but(softcap=1.0, values=Values.PEAKED),
        GROUPED.but(alibi=True),
        TILES.but(alibi=True),
        TILES.but(alibi=True, queries=3, keys=300, heads=8, kv_heads=8, d_head=16, d_value=16),
        TILES.but(alibi=True, queries=3, keys=300, heads=8, kv_heads=8, dtype=F16),
    ),
    explore=cases(always=(Feature.ALIBI,), sometimes=OTHERS, only=plain),
    needs={Feature.ALIBI},
    cost=3,
)
def law_alibi_lowers_scores_by_distance(subject: Subject, case: Case) -> None:
    """POS-1: a score loses slope times distance, also where queries and keys differ in number."""
    call = subject.draw(case)
    expected = subject.judge(call, subject.call(call), "the output is not that under ALiBi")
    evident(call, expected)
    if call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        return
    weights, _ = weighted(subject, call, lowered(subject, call))
    zeros = call.but(query=torch.zeros_like(call.query))
    target = weights @ per_head(call.value.double(), case.heads)
    check_target(subject, zeros, target, "the weights are not e to minus slope times distance")


@law(
    "POS-2",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(alibi=True, queries=3, scale=2.0),
        TINIEST.but(alibi=True, keys=33, softcap=0.5),
        *every(LEANING.but(softcap=0.5, keys=17), dtype=DTYPES),
        *every(LEANING.but(keys=17), scale=(0.1, 0.5, 2.0)),
        LEANING.but(softcap=1.0, scale=2.0, mask=HIDDEN, keys=17),
        GROUPED.but(alibi=True, softcap=0.5, scale=0.5),
        TILES.but(alibi=True, softcap=1.0),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHERS,
        scales=(0.1, 0.5, 2.0),
        patterns=UNBIASED,
        only=plain,
    ),
    needs={Feature.ALIBI},
    cost=2,
)
def law_alibi_joins_after_scale_and_softcap(subject: Subject, case: Case) -> None:
    """POS-2: neither the scale nor a softcap changes what the distance takes from a score."""
    call = subject.draw(case)
    call = call.but(query=torch.zeros_like(call.query))
    weights, _ = weighted(subject, call, lowered(subject, call))
    target = weights @ per_head(call.value.double(), case.heads)
    check_target(subject, call, target, "scale or softcap meets what the distance takes")


@law(
    "POS-3",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(alibi=True, mask=BIAS),
        *every(LEANING.but(mask=BIAS), dtype=DTYPES),
        *every(
            LEANING,
            mask=[
                Mask(kind=MaskKind.FLOAT, pattern=pattern, shape=shape)
                for pattern in (MaskPattern.BIAS, MaskPattern.RANDOM)
                for shape in (MaskShape.FULL, MaskShape.RANK_2, MaskShape.KEYS)
            ],
        ),
        LEANING.but(mask=HIDDEN, softcap=1.0),
        LEANING.but(mask=BIAS, queries=9, keys=4),
        GROUPED.but(alibi=True, mask=BIAS),
        TILES.but(alibi=True, mask=BIAS),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHERS,
        masked=True,
        scales=POSITIVE,
        only=_biased,
    ),
    needs={Feature.ALIBI, Feature.MASK},
    cost=2,
)
def law_alibi_and_a_float_mask_add(subject: Subject, case: Case) -> None:
    """POS-3: slopes beside a mask are one float mask, their sum."""
    call = subject.draw(case)
    given = call.attn_mask
    if given is None:
        raise ValueError("the law of ALiBi and masks needs a case with both")
    mask = additive(given, F64) if given.dtype == torch.bool else given.double()
    spelled = call.but(alibi_slopes=None, attn_mask=mask + lowered(subject, call))
    target = subject.expect(spelled, with_bound=False)
    out, expected = subject.call(call), subject.expect(call)
    check_oracle(call, out, expected, "the output is not that under ALiBi and a mask")
    check_close(
        out,
        target.out,
        expected.bound,
        what="out",
        message="slopes and mask do not add",
        dtype=case.dtype,
        may_be_nan=expected.may_be_nan,
    )
    evident(call, expected)


@law(
    "POS-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(alibi=True, heads=2, kv_heads=2),
        TINIEST.but(alibi=True, heads=4, kv_heads=2),
        *every(LEANING, dtype=DTYPES),
        LEANING.but(mask=HIDDEN, softcap=1.0),
        GROUPED.but(alibi=True),
        GROUPED.but(alibi=True, kv_heads=1, dtype=BF16),
        TILES.but(alibi=True, heads=2, kv_heads=2),
    ),
    explore=cases(
        always=(Feature.ALIBI,),
        sometimes=OTHERS,
        scales=POSITIVE,
        only=lambda case: plain(case) and case.heads > 1,
    ),
    needs={Feature.ALIBI},
    cost=4,
)
def law_a_slope_of_zero_takes_nothing_from_its_head(subject: Subject, case: Case) -> None:
    """POS-4: a head with slope zero is as without ALiBi, and every other as with its own slope."""
    call = subject.draw(case)
    bare = subject.expect(call.but(alibi_slopes=None), with_bound=False).out
    own = subject.expect(call, with_bound=False).out
    every_head = torch.arange(case.heads, device=call.query.device)
    for flat in (every_head >= 0, every_head % 2 == 0, every_head == case.heads - 1):
        slopes = torch.where(flat, 0.0, slopes_of(call))
        given = call.but(alibi_slopes=slopes)
        out, expected = subject.call(given), subject.expect(given)
        target = torch.where(flat[:, None, None], bare, own)
        rows = torch.ones(out.shape[:3], dtype=torch.bool, device=out.device)
        message = "a head does not have a slope of its own"
        check_rows(given, out, target, expected, rows, message)
        evident(given, expected)


@law(
    "POS-5",
    judges=Judged.ATTENTION,
    pinned=(
        *(
            SMALL.but(alibi=True, batch=1, heads=heads, kv_heads=heads, queries=4)
            for heads in SLOPES
        ),
        *every(LEANING.but(heads=6, kv_heads=6), dtype=(F64, F16, BF16)),
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
    needs={Feature.ALIBI},
    cost=4,
)
def law_heads_lean_by_the_published_slopes(subject: Subject, case: Case) -> None:
    """POS-5: the published slopes for n heads give each head the weights of its own slope."""
    call = subject.draw(case)
    slopes = 2.0 ** -torch.tensor(SLOPES[case.heads], dtype=F64, device=call.query.device)
    call = call.but(
        query=torch.zeros_like(call.query),
        alibi_slopes=slopes if case.dtype == F64 else slopes.float(),
    )
    weights, _ = weighted(subject, call, lowered(subject, call))
    target = weights @ per_head(call.value.double(), case.heads)
    check_target(subject, call, target, "the heads do not lean by the published slopes")
