"""The laws of HED and NUM-1: the groups and the keys of their cases."""

from dataclasses import replace

import pytest
import torch
from trying import pinned_judged_count

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.heads.groups import GROUPS, with_reordered_heads
from attnspec.conformance.laws.numerics.nonfinite import PINNED, check_nan
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.spec import Case, Feature, Mask, MaskShape

LAWS = laws.load()
CORRECT = dense("correct", Dense())


def test_laws_of_groups_say_nothing_without_groups() -> None:
    ungrouped = Subject(replace(CORRECT, features=CORRECT.features - {Feature.GQA}))
    for law in LAWS.values():
        if law.judges == "attention" and Feature.GQA in law.needs:
            assert pinned_judged_count(law, ungrouped) == 0


def test_groups_are_of_every_awkward_kind() -> None:
    groups = {(case.heads // case.kv_heads, case.kv_heads, case.batch) for case in GROUPS}
    assert any(group & (group - 1) for group, _, _ in groups)
    assert any(kv_heads == 1 for _, kv_heads, _ in groups)
    assert any(group != kv_heads > 1 for group, kv_heads, _ in groups)
    assert any(batch == kv_heads > 1 for _, kv_heads, batch in groups)


def test_a_nan_is_sought_beside_few_keys_and_many() -> None:
    for dtype in (torch.float64, torch.float32):
        keys = {case.keys for case in PINNED if case.dtype == dtype and case.mask is None}
        assert min(keys) < 8
        assert max(keys) > 16


def test_order_of_heads_is_kept_in_masks_too() -> None:
    case = Case(heads=4, kv_heads=2, queries=3, keys=5, mask=Mask(shape=MaskShape.HEADS))
    call = Subject(CORRECT).draw(case)
    heads, groups = torch.tensor([3, 2, 0, 1]), torch.tensor([1, 0])
    moved = with_reordered_heads(call, heads, groups)
    assert call.attn_mask is not None
    assert moved.attn_mask is not None
    assert torch.equal(moved.attn_mask[0, 0], call.attn_mask[0, 3])
    assert torch.equal(moved.key[0, 0], call.key[0, 1])


@pytest.mark.parametrize("number", [0.0, 1.0, torch.inf])
def test_a_number_where_nan_is_due_is_named(number: float) -> None:
    out = torch.full((1, 1, 2, 2), torch.nan)
    felt = torch.tensor([[[[True, True], [False, False]]]])
    check_nan(out, felt, "wrong")
    out[0, 0, 1] = 0.0
    check_nan(out, felt, "wrong")
    out[0, 0, 0, 1] = number
    with pytest.raises(Violation, match=r"wrong: .* at batch 0, head 0, query 0, channel 1"):
        check_nan(out, felt, "wrong")
