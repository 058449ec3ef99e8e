"""Laws of MSK on large finite masks, which hide a key beside readable ones and no row."""

import torch

from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.calls import readable, repeat_kv
from attnspec.conformance.laws.helpers.cases import (
    DTYPES,
    TINIEST,
)
from attnspec.conformance.laws.helpers.rows import additive_mask, check_rows, has_mask
from attnspec.conformance.laws.law import law
from attnspec.conformance.laws.masking.padding import (
    GROUPED,
    LEFT_PADDING_FLOAT,
    PADDING_PATTERNS,
    SMALL,
    TILES,
)
from attnspec.spec import Case, Mask, MaskKind, MaskPattern, MaskShape, Values

FLOAT_MASKS = (
    TINIEST.but(mask=Mask(kind=MaskKind.FLOAT)),
    *vary(SMALL.but(mask=Mask(kind=MaskKind.FLOAT)), dtype=DTYPES),
    SMALL.but(mask=Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.CAUSAL)),
    SMALL.but(mask=LEFT_PADDING_FLOAT),
    GROUPED.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL)),
    TILES.but(queries=17, keys=65, mask=Mask(kind=MaskKind.FLOAT)),
    TILES.but(mask=LEFT_PADDING_FLOAT, seed=63),
)
MODERATE = (Values.NORMAL, Values.PEAKED, Values.TIES, Values.INTEGERS, Values.CANCELLATION)


@law(
    "MSK-13",
    pinned=FLOAT_MASKS,
    explore=cases(
        masked=True,
        causal=False,
        families=MODERATE,
        scales=POSITIVE,
        patterns=(MaskPattern.RANDOM, MaskPattern.CAUSAL, *PADDING_PATTERNS),
        only=has_mask,
    ),
    cost=3,
)
def law_a_large_finite_mask_hides(subject: Subject, case: Case) -> None:
    """MSK-13: beside readable keys, -10000 or the lowest number hides a key like minus infinity."""
    call = subject.draw(case)
    visible = readable(subject, call)
    hiding = call.but(attn_mask=visible)
    target = subject.expect(hiding, with_bound=False).out
    for hidden in (-1e4, torch.finfo(case.dtype).min):
        changed = call.but(attn_mask=additive_mask(visible, case.dtype, hidden))
        expected = subject.expect(changed)
        message = f"a mask of {hidden:.5g} does not hide a key"
        check_rows(changed, subject.call(changed), target, expected, visible.any(-1), message)


@law(
    "MSK-13",
    pinned=FLOAT_MASKS,
    explore=cases(masked=True, causal=False, families=MODERATE, scales=POSITIVE, only=has_mask),
    cost=3,
)
def law_equal_large_finite_masks_hide_no_key(subject: Subject, case: Case) -> None:
    """MSK-13: if every key has the same large finite mask, none is hidden."""
    call = subject.draw(case)
    call = call.but(value=call.value.abs() + 1)
    value = repeat_kv(subject, call.value.double(), case.heads)
    low, high = value.amin(2, keepdim=True), value.amax(2, keepdim=True)
    shape = (case.queries, case.keys)
    for hidden in (-1e4, torch.finfo(case.dtype).min):
        mask = torch.full(shape, hidden, dtype=case.dtype, device=call.query.device)
        changed = call.but(attn_mask=mask)
        out = subject.call(changed)
        expected = subject.expect(changed)
        rows = torch.ones(out.shape[:-1], dtype=torch.bool, device=out.device)
        nearest = torch.maximum(torch.minimum(out.double(), high), low)
        message = f"a row of masks of {hidden:.5g} leaves the range of its values"
        check_rows(changed, out, nearest, expected, rows, message)
        check_oracle(changed, out, expected, message)
