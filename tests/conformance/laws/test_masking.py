"""The laws of MSK: their cases, and how they compare rows."""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed, Violation
from attnspec.conformance.laws.helpers.rows import check_rows, with_explicit_mask
from attnspec.conformance.laws.masking.causal import largest_sizes
from attnspec.conformance.laws.masking.masks import broadcast_shapes, random_mask
from attnspec.conformance.laws.masking.padding import document_ends
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.cache.steps import LowerRightDense
from attnspec.conformance.runner.check import claims
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.reference.masks import visible_keys
from attnspec.spec import (
    Case,
    CausalAlignment,
    Implementation,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
)

F32 = torch.float32
LAWS = [law for law in laws.load().values() if law.clauses[0].startswith("MSK-")]
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=F32)
"""One query, one key, nothing hidden."""
UPPER_LEFT = dense("upper_left", Dense())
LOWER_RIGHT = replace(
    dense("lower_right", LowerRightDense()),
    profile=replace(UPPER_LEFT.profile, causal_alignment=CausalAlignment.LOWER_RIGHT),
)


def test_no_case_joins_the_causal_flag_to_a_scale_that_is_not_positive() -> None:
    for law in LAWS:
        assert not any(case.is_causal and (case.scale or 1) <= 0 for case in law.pinned), law.name


@pytest.mark.parametrize("base", [UPPER_LEFT, LOWER_RIGHT], ids=lambda base: base.name)
@pytest.mark.parametrize("kind", list(MaskKind))
def test_an_explicit_mask_is_true_at_the_keys_that_the_reference_reads(
    base: Implementation, kind: MaskKind
) -> None:
    mask = Mask(kind=kind, pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.KEYS)
    subject = Subject(base)
    call = subject.draw(Case(batch=2, queries=3, keys=5, is_causal=True, mask=mask))
    spelled = with_explicit_mask(subject, call)
    assert not spelled.is_causal
    attn_mask = spelled.attn_mask
    assert attn_mask is not None
    hidden = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == -torch.inf
    expected, _ = visible_keys(
        3,
        5,
        attn_mask=call.attn_mask,
        is_causal=True,
        alignment=subject.implementation.profile.causal_alignment,
    )
    assert torch.equal(~hidden, expected.expand(2, 1, 3, 5))


def test_every_broadcast_shape_is_tried_with_both_kinds_of_mask() -> None:
    whole = (2, 3, 4, 5)
    shapes = broadcast_shapes(whole)
    assert len(shapes) == len(set(shapes)) == 28
    tried = {
        (shape, random_mask(Case(seed=seed), shape).dtype == torch.bool)
        for seed in range(14)
        for shape in shapes[seed % 7 :: 7]
    }
    assert tried == {(shape, is_bool) for shape in shapes for is_bool in (True, False)}


@pytest.mark.parametrize("keys", [1, 3, 5, 24, 129])
def test_documents_are_not_empty_and_fill_the_sequence(keys: int) -> None:
    for seed in range(6):
        edges = [0, *document_ends(Case(queries=keys, keys=keys, seed=seed)), keys]
        assert edges == sorted(set(edges))


@pytest.mark.parametrize("dtype", [torch.float64, F32, torch.float16, torch.bfloat16], ids=str)
def test_large_futures_stay_in_range(dtype: torch.dtype) -> None:
    case = Case(queries=3, keys=65, d_head=16, d_value=4, dtype=dtype)
    call = draw(case)
    key, value = largest_sizes(Subject(UPPER_LEFT), call)
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else F32).max
    assert float(call.query.double().abs().sum(-1).max()) * key <= wide / 4
    assert case.keys * value <= wide / 4 * (1 + 1e-12)
    assert torch.tensor([key, value], dtype=dtype).isfinite().all()
    assert min(key, value) >= torch.finfo(dtype).max / 4000 or dtype == torch.float64


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf, 1.0])
def test_held_rows_reject_a_single_wrong_element(wrong: float) -> None:
    call = draw(EASY.but(queries=3))
    expected = expect(call, UPPER_LEFT.profile)
    out = expected.out.to(F32)
    rows = torch.tensor([[[True, False, True]]])
    check_rows(call, out, expected.out, expected, rows, "wrong")
    out[0, 0, 1] = torch.nan
    check_rows(call, out, expected.out, expected, rows, "wrong")
    out[0, 0, 2, 1] += wrong
    with pytest.raises(Violation, match="query 2, channel 1"):
        check_rows(call, out, expected.out, expected, rows, "wrong")
    if wrong != wrong:
        check_rows(call, out, expected.out, expected, rows, "wrong", or_nan=True)
    else:
        with pytest.raises(Violation):
            check_rows(call, out, expected.out, expected, rows, "wrong", or_nan=True)


@pytest.mark.rotating(parts=4)
@pytest.mark.parametrize("shape", MaskShape)
def test_laws_that_draw_masks_accept_each_shape(shape: MaskShape) -> None:
    subject = Subject(UPPER_LEFT)
    tried = 0
    for law in laws.load().values():
        if law.judges is not SubjectKind.ATTENTION or not law.explore:
            continue
        if not law.needs.issubset(claims(subject)):
            continue
        small = [case for case in law.pinned if case.mask and case.queries * case.keys < 400]
        for case in {case.mask.kind: case for case in small}.values():
            changed = case.but(mask=replace(case.mask, shape=shape))
            if subject.refuses(changed) is None:
                tried += 1
                with suppress(NotClaimed, NotAvailable):
                    law.check(subject, changed)
    assert tried > 50
