"""Laws of MSK: padding and packed documents, whose hidden keys act as absent ones."""

import torch
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.calls import readable, require_evidence
from attnspec.conformance.laws.helpers.cases import (
    BF16,
    DTYPES,
    F32,
    F64,
    PADDING,
    TINIEST,
)
from attnspec.conformance.laws.helpers.rows import additive_mask, check_rows, has_mask, slice_call
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Mask, MaskKind, MaskPattern, MaskShape, Values

LEFT_PADDING = Mask(pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS)
LEFT_PADDING_FLOAT = Mask(
    kind=MaskKind.FLOAT, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS
)
SMALL = Case(batch=3, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
TILES = TINIEST.but(queries=5, keys=80, d_head=16, d_value=16)
PADDING_PATTERNS = (MaskPattern.PADDING, MaskPattern.LEFT_PADDING)


def _with_hidden_start(keys: int, hidden: int, **changes: object) -> Case:
    """Return a case of left padding that hides exactly the first `hidden` keys."""
    return TILES.but(keys=keys, seed=hidden - 1, mask=LEFT_PADDING, **changes)


FIRST_TILES_HIDDEN = tuple(
    _with_hidden_start(keys, hidden, values=values, dtype=dtype)
    for keys, hidden, values, dtype in (
        (19, 16, Values.NORMAL, F32),
        (19, 16, Values.OFFSET, F64),
        (19, 16, Values.OFFSET, F32),
        (80, 64, Values.NORMAL, F32),
        (80, 64, Values.OFFSET, F64),
        (144, 128, Values.OFFSET, F32),
    )
)
ONLY_THE_LAST = tuple(
    _with_hidden_start(keys, keys - 1, dtype=dtype)
    for keys, dtype in ((17, F32), (65, BF16), (129, F64))
)


@law(
    "MSK-10",
    pinned=(
        *vary(TINIEST, mask=(PADDING, LEFT_PADDING)),
        *vary(SMALL.but(mask=PADDING), dtype=DTYPES),
        SMALL.but(mask=LEFT_PADDING, dtype=BF16),
        SMALL.but(mask=LEFT_PADDING_FLOAT, seed=2),
        SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.FULL)),
        *vary(GROUPED, mask=(PADDING, LEFT_PADDING)),
        *FIRST_TILES_HIDDEN,
        *ONLY_THE_LAST,
    ),
    wide=(
        *vary(SMALL.but(mask=LEFT_PADDING), dtype=DTYPES),
        _with_hidden_start(80, 64, values=Values.OFFSET, dtype=F32),
        _with_hidden_start(144, 128, values=Values.NORMAL, dtype=F32),
        _with_hidden_start(144, 128, values=Values.OFFSET, dtype=F64),
        TILES.but(mask=PADDING, keys=129, seed=63),
    ),
    explore=cases(
        masked=True, causal=False, scales=POSITIVE, patterns=PADDING_PATTERNS, only=has_mask
    ),
    cost=3,
)
def law_padding_equals_a_shorter_sequence(subject: Subject, case: Case) -> None:
    """MSK-10: keys hidden from every query, first or last, act as absent."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(call)
    visible = readable(subject, call)
    target = expected.out.clone()
    for b in range(case.batch):
        places = visible[b, 0, 0].nonzero().flatten().tolist()
        if places:
            kept = slice(places[0], places[-1] + 1)
            shorter = slice_call(call, batch=slice(b, b + 1), keys=kept)
            target[b] = subject.expect(shorter, with_bound=False).out[0]
    message = "padding that is hidden does not equal a shorter sequence"
    check_rows(call, out, target, expected, visible.any(-1), message)
    require_evidence(call, expected)


def _square_cases(subject: Subject) -> SearchStrategy[Case]:
    """Draw masked cases with equal numbers of queries and keys."""
    drawn = cases(masked=True, scales=POSITIVE, only=has_mask)(subject)
    square = drawn.map(lambda case: case.but(keys=case.queries))
    return square.filter(lambda case: subject.refuses(case) is None)


@law(
    "MSK-11",
    pinned=(
        TINIEST.but(queries=5, keys=5, mask=Mask(), seed=3),
        TINIEST.but(queries=5, keys=5, mask=Mask(), seed=3, is_causal=True),
        *vary(SMALL.but(queries=9, keys=9, mask=Mask()), dtype=DTYPES),
        SMALL.but(queries=23, keys=23, mask=Mask(kind=MaskKind.FLOAT), seed=1),
        SMALL.but(queries=23, keys=23, mask=Mask(), seed=1, is_causal=True),
        GROUPED.but(queries=19, keys=19, mask=Mask(), seed=2),
    ),
    wide=(TILES.but(queries=129, keys=129, mask=Mask(), seed=2, dtype=BF16),),
    explore=_square_cases,
    cost=4,
)
def law_packed_documents_equal_separate_calls(subject: Subject, case: Case) -> None:
    """MSK-11: documents packed behind a block-diagonal mask give what each gives alone."""
    call = subject.draw(case)
    if case.keys != case.queries:
        raise ValueError("documents are packed into sequences of one length")
    edges = document_ends(case)
    place = torch.arange(case.keys, device=call.query.device)
    document = torch.bucketize(place, torch.tensor(edges, device=place.device), right=True)
    mask = document[:, None] == document
    if case.mask is not None and case.mask.kind is MaskKind.FLOAT:
        mask = additive_mask(mask, case.dtype)
    packed = call.but(attn_mask=mask)
    out = subject.call(packed)
    expected = subject.expect(packed)
    target = expected.out.clone()
    for start, stop in zip([0, *edges], [*edges, case.keys], strict=True):
        places = slice(start, stop)
        alone = slice_call(call, queries=places, keys=places)
        target[:, :, places] = subject.expect(alone, with_bound=False).out
    rows = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
    message = "a packed document does not give what it gives alone"
    check_rows(packed, out, target, expected, rows, message)
    require_evidence(packed, expected)


def document_ends(case: Case) -> list[int]:
    """Return the ends of all documents but the last: short, long, and near borders of tiles."""
    lengths, number = (3, 16, 1, 64, 7, 17), case.seed
    ends: list[int] = []
    while sum(ends[-1:]) + lengths[number % 6] < case.keys:
        ends.append(sum(ends[-1:]) + lengths[number % 6])
        number += 1
    return ends
