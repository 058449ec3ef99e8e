"""The laws of ATT: right attention passes them, each planted bug is caught by those it names."""

import math
from dataclasses import replace

import pytest
import torch
from trying import pinned_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import Law, registered
from attnspec.conformance.laws.attention import _code_keys
from attnspec.conformance.laws.attention_invariance import _rotate, _shift
from attnspec.conformance.laws.attention_sides import evident, grid, plain, readable
from attnspec.conformance.mutants.dense import ALL_DTYPES, Dense, dense
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.oracle import Expected, expect
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.reference.masks import visible_keys
from attnspec.spec import (
    Case,
    Implementation,
    Mask,
    MaskKind,
    MaskPattern,
    MaskShape,
    Values,
    chapter_text,
)
from attnspec.spec.clauses import parse

F32 = torch.float32
CHAPTER = parse("attention", chapter_text("attention"))
LAWS = {
    name: law
    for name, law in registered().items()
    if law.clauses[0] in {each.id for each in CHAPTER}
}
MUTANTS = {
    name: mutant
    for name, mutant in planted().items()
    if isinstance(mutant.subject, Implementation)
    and type(mutant.subject.attention).__module__.startswith(
        "attnspec.conformance.mutants.attention"
    )
    and "options-combine" not in mutant.kills  # what it tries depends on what is claimed
}
BASES = {"dense": dense("dense", Dense()), "tiled": dense("tiled", Tiled())}
EASY = (
    Case(dtype=F32, scale=1.0, values=Values.INTEGERS),
    Case(queries=2, keys=16, d_head=2, d_value=2, dtype=F32, scale=0.1),
    Case(queries=3, keys=16, d_head=2, d_value=2, dtype=F32, scale=1.0, values=Values.DENORMAL),
)
"""One key; a whole tile of keys and small scores; values that round to zero beside the bound."""


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_right_attention_passes_and_the_pass_is_evidence(base: Implementation, law: Law) -> None:
    said = pinned_on(law, Subject(base))
    assert said >= 0.9 * len(law.pinned)


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        pytest.param(mutant, name, id=f"{id}-{name}")
        for id, mutant in MUTANTS.items()
        for name in mutant.kills
    ],
)
def test_mutant_is_killed_by_the_pinned_cases_of_each_law_it_names(
    mutant: Mutant, law: str
) -> None:
    with pytest.raises(Violation):
        pinned_on(registered()[law], Subject(mutant.subject))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutant_is_right_on_an_easy_input(mutant: Mutant) -> None:
    subject = Subject(mutant.subject)

    def is_right(case: Case) -> bool:
        call = subject.draw(case)
        try:
            subject.judge(call, subject.call(call), "wrong")
        except Violation:
            return False
        return True

    assert any(map(is_right, EASY))


def test_every_law_kills_a_mutant() -> None:
    assert set(LAWS) - {"options-combine"} <= {
        name for mutant in MUTANTS.values() for name in mutant.kills
    }


def test_chapter_and_laws_name_each_other() -> None:
    named = {law: each.id for each in CHAPTER for law in each.held_by}
    assert named == {law.check.__name__: law.clauses[0] for law in LAWS.values()}


def test_no_other_law_meets_what_a_law_of_its_own_tries() -> None:
    odd = [law.name for law in LAWS.values() if not all(map(plain, law.pinned))]
    assert odd == ["negative-and-zero-scale"]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_contents_of_related_calls_are_exact(dtype: torch.dtype) -> None:
    for seed in range(6):
        case = Case(batch=2, heads=2, kv_heads=2, keys=40, d_head=13, dtype=dtype, seed=seed)
        key = grid(draw(case.but(values=Values.PEAKED)).key)
        other = grid(draw(case.but(seed=seed + 100)).key)
        assert torch.equal((2 * key - other).double(), 2 * key.double() - other.double())
        shift = _shift(case, key)
        assert torch.equal((key + shift).double(), key.double() + shift.double())
        turned, also = _rotate(case, key).double(), _rotate(case, other).double()
        assert torch.equal(turned @ also.mT, key.double() @ other.double().mT)


@pytest.mark.parametrize("keys", [1, 2, 3, 8, 17])
def test_coded_keys_leave_the_margin_that_the_law_counts_on(keys: int) -> None:
    case = Case(queries=keys, keys=keys, d_head=13, dtype=torch.bfloat16)
    call, margin = _code_keys(case, draw(case), torch.arange(keys)[None, None])
    scores = (call.query.double() @ call.key.double().mT / math.sqrt(13))[0, 0]
    other = scores.masked_fill(torch.eye(keys, dtype=torch.bool), -torch.inf)
    assert (scores.diagonal() - other.amax(-1) >= margin * (1 - 1e-12)).all()
    assert margin >= 7.9


@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize("kind", [MaskKind.BOOL, MaskKind.FLOAT])
@pytest.mark.parametrize("shape", [MaskShape.FULL, MaskShape.KEYS, MaskShape.RANK_2])
def test_readable_keys_are_those_of_the_reference(
    queries: int, kind: MaskKind, shape: MaskShape
) -> None:
    mask = Mask(kind=kind, pattern=MaskPattern.EMPTY_ROWS, shape=shape)
    call = draw(Case(batch=2, queries=queries, keys=5, is_causal=True, mask=mask))
    expected, _ = visible_keys(queries, 5, attn_mask=call.attn_mask, is_causal=True)
    assert torch.equal(readable(Subject(BASES["dense"]), call), expected.expand(2, 1, queries, 5))


def test_a_bound_as_wide_as_the_output_is_no_evidence() -> None:
    call = draw(Case(d_value=2))
    expected = expect(call, BASES["dense"].profile)
    largest = expected.out.abs().max()

    def with_bound(fraction: float) -> Expected:
        return replace(expected, bound=(fraction * largest).expand(expected.out.shape))

    evident(call, expected)
    evident(call, with_bound(0.4))
    evident(call, replace(with_bound(0.4), out=torch.zeros_like(expected.out)))
    for fraction in (0.6, math.inf):
        with pytest.raises(NotClaimed, match="as large as the output"):
            evident(call, expected, with_bound(fraction))
