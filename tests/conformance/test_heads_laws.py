"""The laws of HED and NUM-1: right attention passes, each planted bug is caught by its laws."""

from dataclasses import replace

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.heads import GROUPS, _reordered
from attnspec.conformance.laws.numerics import PINNED, _check_nan
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Feature, Implementation, Mask, MaskShape, chapter_text
from attnspec.spec.clauses import parse

LAWS = {
    name: law
    for name, law in registered().items()
    if law.clauses[0].startswith("HED-") or law.clauses[0] == "NUM-1"
}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation) and LAWS.keys() & set(mutant.kills)
}
BASES = {"dense": dense("dense", Dense()), "tiled": dense("tiled", Tiled())}
EASY = Case(queries=1, keys=1, d_head=2, d_value=2, dtype=torch.float32)
"""One head, one query, one key."""


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_and_the_pass_is_evidence(base: Implementation, law: Law) -> None:
    assert pinned_on(law, Subject(base)) >= 0.9 * len(law.pinned)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
        if name in LAWS
    ],
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(
    mutant: Mutant, law: str
) -> None:
    with pytest.raises((Violation, Raised)):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)
    call = subject.draw(EASY)
    subject.judge(call, subject.call(call), "wrong")


def test_every_law_kills_a_mutant() -> None:
    assert set(LAWS) <= {name for mutant in MUTANTS.values() for name in mutant.kills}


def test_chapter_and_laws_name_each_other() -> None:
    held = {law: each.id for each in parse("heads", chapter_text("heads")) for law in each.held_by}
    laws = [law for law in LAWS.values() if law.clauses[0].startswith("HED-")]
    assert held == {law.check.__name__: law.clauses[0] for law in laws}


def test_laws_of_groups_say_nothing_without_groups() -> None:
    base = BASES["dense"]
    ungrouped = Subject(replace(base, features=base.features - {Feature.GQA}))
    for law in LAWS.values():
        if Feature.GQA in law.needs:
            assert pinned_on(law, ungrouped) == 0


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
    call = Subject(BASES["dense"]).draw(case)
    heads, groups = torch.tensor([3, 2, 0, 1]), torch.tensor([1, 0])
    moved = _reordered(call, heads, groups)
    assert call.attn_mask is not None
    assert moved.attn_mask is not None
    assert torch.equal(moved.attn_mask[0, 0], call.attn_mask[0, 3])
    assert torch.equal(moved.key[0, 0], call.key[0, 1])


@pytest.mark.parametrize("number", [0.0, 1.0, torch.inf])
def test_a_number_where_nan_is_due_is_named(number: float) -> None:
    out = torch.full((1, 1, 2, 2), torch.nan)
    felt = torch.tensor([[[[True, True], [False, False]]]])
    _check_nan(out, felt, "wrong")
    out[0, 0, 1] = 0.0
    _check_nan(out, felt, "wrong")
    out[0, 0, 0, 1] = number
    with pytest.raises(Violation, match=r"wrong: .* at batch 0, head 0, query 0, channel 1"):
        _check_nan(out, felt, "wrong")
