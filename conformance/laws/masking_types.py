"""The law of MSK that lets a float mask have a dtype of its own."""

from dataclasses import replace

from hypothesis.strategies import SearchStrategy

from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, evident, plain
from attnspec.conformance.laws.masking_sides import check_oracle
from attnspec.conformance.laws.options_sides import (
    BF16,
    BIAS,
    DTYPES,
    F16,
    F32,
    F64,
    GROUPED,
    SMALL,
    TILES,
    TINIEST,
)
from attnspec.conformance.strategies import cases
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.spec import Case, Feature, Layout, Layouts, Mask, MaskKind, MaskPattern, MaskShape

HIDING = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)


def _typed(case: Case, number: int, mask: Mask = BIAS) -> Case:
    """The case with a float mask of one of the dtypes that its queries do not have."""
    others = [each for each in DTYPES if each != case.dtype]
    mask = replace(mask, kind=MaskKind.FLOAT, dtype=others[number % len(others)])
    return case.but(mask=mask)


def _common_pairs(case: Case, mask: Mask) -> list[Case]:
    """A wide mask beside narrow queries and the reverse, in the pairs that people use."""
    return [
        case.but(dtype=of_query, mask=replace(mask, dtype=of_mask))
        for of_query, of_mask in ((F64, F32), (F16, F32), (BF16, F32), (F32, F64), (F32, BF16))
    ]


def _masked(subject: Subject) -> SearchStrategy[Case]:
    drawn = cases(
        masked=True,
        scales=POSITIVE,
        layouts=(Layout.CONTIGUOUS, Layout.SLICED),
        only=lambda case: plain(case) and case.mask is not None,
    )(subject)
    typed = drawn.map(lambda case: _typed(case, case.seed, case.mask or BIAS))
    return typed.filter(lambda case: subject.refuses(case) is None)


@law(
    "MSK-20",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=replace(BIAS, dtype=F64)),
        *_common_pairs(SMALL.but(keys=17), BIAS),
        *_common_pairs(SMALL.but(keys=33), HIDING),
        SMALL.but(mask=replace(BIAS, dtype=F32), dtype=F64, layouts=Layouts(mask=Layout.SLICED)),
        GROUPED.but(mask=replace(BIAS, dtype=F32), dtype=BF16),
        TILES.but(mask=replace(BIAS, dtype=F32), dtype=F64),
    ),
    explore=_masked,
    needs={Feature.MASK},
    cost=5,
)
def law_a_float_mask_of_another_dtype_is_read_or_refused(subject: Subject, case: Case) -> None:
    """MSK-20: a float mask whose dtype is not the query's is read as it is, or raises."""
    if case.mask is None or case.mask.dtype in (None, case.dtype):
        raise NotClaimed("the mask has the dtype of the query")
    call = subject.draw(case)
    try:
        out = subject.call(call)
    except Raised:
        return
    expected = subject.expect(call)
    check_oracle(call, out, expected, "a float mask whose dtype is not the query's is misread")
    evident(call, expected)
