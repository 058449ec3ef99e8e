"""The law of MSK on empty rows: queries that may read nothing."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    DTYPES,
    EMPTY_ROWS,
    F16,
    TINIEST,
)
from attnspec.conformance.laws.helpers.rows import check_empty_rows, has_mask
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.masking.padding import GROUPED, SMALL, TILES
from attnspec.spec import Case, Mask, MaskKind, MaskPattern


@law(
    "MSK-12",
    pinned=(
        TINIEST.but(mask=EMPTY_ROWS),
        *vary(SMALL.but(mask=EMPTY_ROWS), dtype=DTYPES),
        # the number that hides a key depends on the type, and on what hides it
        *vary(
            SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS)), dtype=DTYPES
        ),
        *vary(SMALL.but(queries=9, keys=4, is_causal=True), dtype=DTYPES),
        *vary(SMALL.but(queries=9, keys=4, window=(1, 0)), dtype=DTYPES),
        SMALL.but(mask=EMPTY_ROWS, is_causal=True),
        GROUPED.but(mask=EMPTY_ROWS),
        *vary(TINIEST.but(mask=EMPTY_ROWS, queries=17), keys=(1, 15, 16, 17)),
    ),
    wide=(
        *vary(TILES.but(mask=EMPTY_ROWS, queries=65), keys=(63, 64, 65), dtype=(F16, BF16)),
        *vary(TILES.but(mask=EMPTY_ROWS), keys=(127, 128, 129)),
    ),
    explore=cases(masked=True, patterns=(MaskPattern.EMPTY_ROWS,), scales=POSITIVE, only=has_mask),
    cost=2,
)
def law_an_empty_row_gives_the_declared_output(subject: Subject, case: Case) -> None:
    """MSK-12: a query that may read nothing gives zeros, or what the profile declares."""
    call = subject.draw(case)
    _check_empty_rows(subject, call)
    if call.attn_mask is not None:
        hiding = torch.zeros_like(call.attn_mask)
        if hiding.dtype != torch.bool:
            hiding = hiding - torch.inf
        _check_empty_rows(subject, call.but(attn_mask=hiding))


def _check_empty_rows(subject: Subject, call: Call) -> None:
    """Compare empty rows with the declared result, and the other rows with the definition."""
    out = subject.call(call)
    expected = subject.expect(call)
    message = "a query that may read nothing does not give"
    check_empty_rows(subject, call, out, expected, message)
    check_oracle(call, out, expected, "a row beside empty ones is wrong")
