"""Laws of MSK, last part: hidden keys might as well not be there, and rows that read nothing."""

import torch
from hypothesis.strategies import SearchStrategy

from attnspec.conformance.call import Call
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import (
    POSITIVE,
    evident,
    per_head,
    readable,
)
from attnspec.conformance.laws.masking_sides import additive, check_oracle, check_rows, masked, part
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Subject
from attnspec.spec import Case, EmptyRow, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
PADDED = Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)
LEFT = Mask(pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS)
ADDED = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.LEFT_PADDING, shape=MaskShape.KEYS)
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=3, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17, d_head=16, d_value=16)
TILES = TINIEST.but(queries=5, keys=80, d_head=16, d_value=16)
PADDING = (MaskPattern.PADDING, MaskPattern.LEFT_PADDING)


def _first_hidden(keys: int, hidden: int, **changes: object) -> Case:
    """A case of left padding in which exactly the first `hidden` keys are out of reach."""
    return TILES.but(keys=keys, seed=hidden - 1, mask=LEFT, **changes)


FIRST_TILES_HIDDEN = tuple(
    _first_hidden(keys, hidden, values=values, dtype=dtype)
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
    _first_hidden(keys, keys - 1, dtype=dtype)
    for keys, dtype in ((17, F32), (65, BF16), (129, F64))
)


@law(
    "MSK-10",
    judges=Judged.ATTENTION,
    pinned=(
        *every(TINIEST, mask=(PADDED, LEFT)),
        *every(SMALL.but(mask=PADDED), dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=LEFT, dtype=BF16),
        SMALL.but(mask=ADDED, seed=2),
        SMALL.but(mask=Mask(pattern=MaskPattern.PADDING, shape=MaskShape.FULL)),
        *every(GROUPED, mask=(PADDED, LEFT)),
        *FIRST_TILES_HIDDEN,
        *ONLY_THE_LAST,
    ),
    wide=(
        *every(SMALL.but(mask=LEFT), dtype=(F32, F64, F16, BF16)),
        _first_hidden(80, 64, values=Values.OFFSET, dtype=F32),
        _first_hidden(144, 128, values=Values.NORMAL, dtype=F32),
        _first_hidden(144, 128, values=Values.OFFSET, dtype=F64),
        TILES.but(mask=PADDED, keys=129, seed=63),
    ),
    explore=cases(masked=True, causal=False, scales=POSITIVE, patterns=PADDING, only=masked),
    needs={Feature.MASK},
    cost=3,
)
def law_padding_equals_a_shorter_sequence(subject: Subject, case: Case) -> None:
    """MSK-10: keys hidden from every query, first or last, might as well not be there."""
    call = subject.draw(case)
    out = subject.call(call)
    expected = subject.expect(call)
    visible = readable(subject, call)
    target = expected.out.clone()
    for b in range(case.batch):
        places = visible[b, 0, 0].nonzero().flatten().tolist()
        if places:
            kept = slice(places[0], places[-1] + 1)
            shorter = part(call, batch=slice(b, b + 1), keys=kept)
            target[b] = subject.expect(shorter, with_bound=False).out[0]
    message = "padding that is hidden does not equal a shorter sequence"
    check_rows(call, out, target, expected, visible.any(-1), message)
    evident(call, expected)


def _square(subject: Subject) -> SearchStrategy[Case]:
    """Draw cases with as many queries as keys."""
    drawn = cases(masked=True, scales=POSITIVE, only=masked)(subject)
    square = drawn.map(lambda case: case.but(keys=case.queries))
    return square.filter(lambda case: subject.refuses(case) is None)


@law(
    "MSK-11",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(queries=5, keys=5, mask=Mask(), seed=3),
        TINIEST.but(queries=5, keys=5, mask=Mask(), seed=3, is_causal=True),
        *every(SMALL.but(queries=9, keys=9, mask=Mask()), dtype=(F32, F64, F16, BF16)),
        SMALL.but(queries=23, keys=23, mask=Mask(kind=MaskKind.FLOAT), seed=1),
        SMALL.but(queries=23, keys=23, mask=Mask(), seed=1, is_causal=True),
        GROUPED.but(queries=19, keys=19, mask=Mask(), seed=2),
    ),
    wide=(TILES.but(queries=129, keys=129, mask=Mask(), seed=2, dtype=BF16),),
    explore=_square,
    needs={Feature.MASK},
    cost=4,
)
def law_packed_documents_equal_separate_calls(subject: Subject, case: Case) -> None:
    """MSK-11: documents packed behind a block-diagonal mask give what each gives alone."""
    call = subject.draw(case)
    if case.keys != case.queries:
        raise ValueError("documents are packed into sequences of one length")
    edges = _edges(case)
    place = torch.arange(case.keys, device=call.query.device)
    document = torch.bucketize(place, torch.tensor(edges, device=place.device), right=True)
    mask = document[:, None] == document
    if case.mask is not None and case.mask.kind is MaskKind.FLOAT:
        mask = additive(mask, case.dtype)
    packed = call.but(attn_mask=mask)
    out = subject.call(packed)
    expected = subject.expect(packed)
    target = expected.out.clone()
    for start, stop in zip([0, *edges], [*edges, case.keys], strict=True):
        own = slice(start, stop)
        alone = part(call, queries=own, keys=own)
        target[:, :, own] = subject.expect(alone, with_bound=False).out
    rows = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
    message = "a packed document does not give what it gives alone"
    check_rows(packed, out, target, expected, rows, message)
    evident(packed, expected)


def _edges(case: Case) -> list[int]:
    """Where documents end, the last one apart: short, long, and about the borders of tiles."""
    lengths, turn = (3, 16, 1, 64, 7, 17), case.seed
    edges: list[int] = []
    while sum(edges[-1:]) + lengths[turn % 6] < case.keys:
        edges.append(sum(edges[-1:]) + lengths[turn % 6])
        turn += 1
    return edges


EMPTY = Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)


@law(
    "MSK-12",
    judges=Judged.ATTENTION,
    pinned=(
        TINIEST.but(mask=EMPTY),
        *every(SMALL.but(mask=EMPTY), dtype=(F32, F64, F16, BF16)),
        SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.EMPTY_ROWS)),
        SMALL.but(mask=EMPTY, is_causal=True),
        GROUPED.but(mask=EMPTY),
        *every(TINIEST.but(mask=EMPTY, queries=17), keys=(1, 15, 16, 17)),
    ),
    wide=(
        *every(TILES.but(mask=EMPTY, queries=65), keys=(63, 64, 65), dtype=(F16, BF16)),
        *every(TILES.but(mask=EMPTY), keys=(127, 128, 129)),
    ),
    explore=cases(masked=True, patterns=(MaskPattern.EMPTY_ROWS,), scales=POSITIVE, only=masked),
    needs={Feature.MASK},
    cost=2,
)
def law_an_empty_row_gives_the_profiles_answer(subject: Subject, case: Case) -> None:
    """MSK-12: a query that may read nothing gives zeros, or what the profile declares."""
    call = subject.draw(case)
    _answers(subject, call)
    if call.attn_mask is not None:
        nothing = torch.zeros_like(call.attn_mask)
        if nothing.dtype != torch.bool:
            nothing = nothing - torch.inf
        _answers(subject, call.but(attn_mask=nothing))


def _answers(subject: Subject, call: Call) -> None:
    """Hold empty rows to the profile's answer, and the other rows to the definition."""
    out = subject.call(call)
    expected = subject.expect(call)
    empty = ~readable(subject, call).any(-1)
    answer = subject.implementation.profile.empty_row
    mean = per_head(call.value.double(), call.query.shape[1]).mean(2, keepdim=True)
    fill = mean if answer is EmptyRow.MEAN else 0.0 if answer is EmptyRow.ZERO else torch.nan
    target = torch.where(empty[..., None], fill, expected.out)
    message = f"a query that may read nothing does not give {answer}"
    check_rows(call, out, target, expected, empty, message)
    check_oracle(call, out, expected, "a row beside empty ones is wrong")


HIDDEN = (
    TINIEST.but(mask=Mask(kind=MaskKind.FLOAT)),
    *every(SMALL.but(mask=Mask(kind=MaskKind.FLOAT)), dtype=(F32, F64, F16, BF16)),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.CAUSAL)),
    SMALL.but(mask=ADDED),
    GROUPED.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL)),
    TILES.but(queries=17, keys=65, mask=Mask(kind=MaskKind.FLOAT)),
    TILES.but(mask=ADDED, seed=63),
)
MODERATE = (Values.NORMAL, Values.PEAKED, Values.TIES, Values.INTEGERS, Values.CANCELLATION)


@law(
    "MSK-13",
    judges=Judged.ATTENTION,
    pinned=HIDDEN,
    explore=cases(
        masked=True,
        causal=False,
        families=MODERATE,
        scales=POSITIVE,
        patterns=(MaskPattern.RANDOM, MaskPattern.CAUSAL, *PADDING),
        only=masked,
    ),
    needs={Feature.MASK},
    cost=3,
)
def law_a_large_finite_mask_hides(subject: Subject, case: Case) -> None:
    """MSK-13: beside readable keys, -10000 or the lowest number hides a key like minus infinity."""
    call = subject.draw(case)
    visible = readable(subject, call)
    hiding = call.but(attn_mask=visible)
    target = subject.expect(hiding, with_bound=False).out
    for hidden in (-1e4, torch.finfo(case.dtype).min):
        given = call.but(attn_mask=additive(visible, case.dtype, hidden))
        expected = subject.expect(given)
        message = f"a mask of {hidden:.5g} does not hide a key"
        check_rows(given, subject.call(given), target, expected, visible.any(-1), message)


@law(
    "MSK-13",
    judges=Judged.ATTENTION,
    pinned=HIDDEN,
    explore=cases(masked=True, causal=False, families=MODERATE, scales=POSITIVE, only=masked),
    needs={Feature.MASK},
    cost=3,
)
def law_a_row_of_large_finite_masks_stays_among_its_values(subject: Subject, case: Case) -> None:
    """MSK-13: where every key has the same large finite mask, none is hidden."""
    call = subject.draw(case)
    call = call.but(value=call.value.abs() + 1)
    value = per_head(call.value.double(), case.heads)
    low, high = value.amin(2, keepdim=True), value.amax(2, keepdim=True)
    shape = (case.queries, case.keys)
    for hidden in (-1e4, torch.finfo(case.dtype).min):
        mask = torch.full(shape, hidden, dtype=case.dtype, device=call.query.device)
        given = call.but(attn_mask=mask)
        out = subject.call(given)
        expected = subject.expect(given)
        rows = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
        nearest = torch.maximum(torch.minimum(out.double(), high), low)
        message = f"a row of masks of {hidden:.5g} leaves the range of its values"
        check_rows(given, out, nearest, expected, rows, message)
        check_oracle(given, out, expected, message)
