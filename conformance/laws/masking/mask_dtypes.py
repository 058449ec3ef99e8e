"""The law of MSK on float masks whose dtype is not the dtype of the queries."""

from dataclasses import replace

from hypothesis.strategies import SearchStrategy

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed, Raised
from attnspec.conformance.laws.helpers.calls import plain, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    BIAS,
    DTYPES,
    F16,
    F32,
    F64,
    GROUPED,
    HIDING,
    SMALL,
    TILES,
    TINIEST,
)
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Layout, Layouts, Mask, MaskKind


def _with_mask_dtype(case: Case, number: int, mask: Mask = BIAS) -> Case:
    """Return the case with a float mask of a dtype that its queries do not have."""
    other_dtypes = [dtype for dtype in DTYPES if dtype != case.dtype]
    mask = replace(mask, kind=MaskKind.FLOAT, dtype=other_dtypes[number % len(other_dtypes)])
    return case.but(mask=mask)


def _common_pairs(case: Case, mask: Mask) -> list[Case]:
    """Return cases of wide masks with narrow queries, and the reverse, in common pairs."""
    return [
        case.but(dtype=of_query, mask=replace(mask, dtype=of_mask))
        for of_query, of_mask in ((F64, F32), (F16, F32), (BF16, F32), (F32, F64), (F32, BF16))
    ]


def _masked_cases(subject: Subject) -> SearchStrategy[Case]:
    drawn = cases(
        masked=True,
        scales=POSITIVE,
        layouts=(Layout.CONTIGUOUS, Layout.SLICED),
        only=lambda case: plain(case) and case.mask is not None,
    )(subject)
    typed = drawn.map(lambda case: _with_mask_dtype(case, case.seed, case.mask or BIAS))
    return typed.filter(lambda case: subject.refuses(case) is None)


@law(
    "MSK-20",
    pinned=(
        TINIEST.but(mask=replace(BIAS, dtype=F64)),
        *_common_pairs(SMALL.but(keys=17), BIAS),
        *_common_pairs(SMALL.but(keys=33), HIDING),
        SMALL.but(mask=replace(BIAS, dtype=F32), dtype=F64, layouts=Layouts(mask=Layout.SLICED)),
        GROUPED.but(mask=replace(BIAS, dtype=F32), dtype=BF16),
        TILES.but(mask=replace(BIAS, dtype=F32), dtype=F64),
    ),
    explore=_masked_cases,
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
    require_evidence(call, expected)
